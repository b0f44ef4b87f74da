"""The signals by which somebody asks us to end: the first asks the job politely, the next one loses patience.

What was ignored when we were started stays ignored, as nohup(1) and a shell's background jobs rely on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupts:
    """What has been received since it was made; belongs to the running event loop."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.impatient = asyncio.Event()  # nobody waits for our output any more
        self._received: list[signal.Signals] = []
        self._listener: Callable[[signal.Signals], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._ours = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in self._ours:
            self._loop.add_signal_handler(number, self._on_signal, number)

    def listen(self, listener: Callable[[signal.Signals], None]) -> None:
        """Calls `listener` for each signal, those included that are here already."""
        self._listener = listener
        for number in self._received:
            listener(number)

    def close(self) -> None:
        """Gives the signals back to Python."""
        self._listener = None
        for number in self._ours:
            self._loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        self._received.append(number)
        # A terminal's Ctrl-C is answered by hand; the others come once, from programs that expect us to go.
        if self.first is not None or number != signal.SIGINT:
            self.impatient.set()
        self.first = self.first or number
        if self._listener is not None:
            self._listener(number)
