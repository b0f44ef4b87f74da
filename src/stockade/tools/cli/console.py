"""The terminal that we were started on, lent to the terminal of a job.

While it is lent it is raw: every key goes to the job, Ctrl-C included, and the job's terminal does the echoing. It gets its own settings
back on every way out that a process can take itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import termios
import tty
from collections.abc import Callable, Iterator

from stockade.errors import InvalidRequest
from stockade.policy.command import LARGEST_TERMINAL, Terminal


class Console:
    """The terminal behind a descriptor."""

    def __init__(self, descriptor: int) -> None:
        """Raises: InvalidRequest where it is no terminal."""
        if not os.isatty(descriptor):
            raise InvalidRequest(
                "--tty: our standard input is not a terminal",
                field="tty",
                hint="run it from a terminal, or pass input on with --interactive",
            )
        self._descriptor = descriptor

    def size(self) -> Terminal:
        """How large it is; the usual size where it does not know."""
        try:
            columns, rows = os.get_terminal_size(self._descriptor)
        except OSError:  # it has been hung up
            columns = rows = 0
        if not rows or not columns:
            return Terminal()
        return Terminal(rows=min(rows, LARGEST_TERMINAL), columns=min(columns, LARGEST_TERMINAL))

    @contextlib.contextmanager
    def lent(self, on_resize: Callable[[Terminal], None]) -> Iterator[None]:
        """Raw until the end of the block, on the running event loop; `on_resize` hears of each new size. Raises: InvalidRequest."""
        try:
            before = termios.tcgetattr(self._descriptor)
        except termios.error as error:
            raise InvalidRequest(f"--tty: our terminal cannot be used: {error.args[-1]}", field="tty") from None
        loop = asyncio.get_running_loop()

        def resized() -> None:
            on_resize(self.size())

        def resumed() -> None:  # the shell has set it as it wants it
            self._make_raw()
            resized()

        loop.add_signal_handler(signal.SIGWINCH, resized)
        loop.add_signal_handler(signal.SIGCONT, resumed)
        try:
            self._make_raw()
            resized()  # it may have changed since the job was described
            yield
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_signal_handler(signal.SIGCONT)
            with contextlib.suppress(termios.error):  # it has been hung up
                # At once: one whose output is stopped would never be drained.
                termios.tcsetattr(self._descriptor, termios.TCSANOW, before)

    def _make_raw(self) -> None:
        with contextlib.suppress(termios.error):
            tty.setraw(self._descriptor, termios.TCSANOW)
