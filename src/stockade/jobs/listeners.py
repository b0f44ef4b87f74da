"""Who is told that a job has settled: waiters first, then listeners, each exactly once.

Listeners are called on a thread of their own, so nobody else waits for one that is slow, or that starts a job and waits for it. What
one raises is logged and goes no further.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError

from stockade.jobs.records import HOST, Caller, JobRecord

_log = logging.getLogger(__name__)

Listener = Callable[[JobRecord], object]
Waiter = Future[JobRecord]


class Listeners:
    """Callbacks for settled jobs, told in the order in which they were added; any thread may add and remove."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[int, tuple[Listener, Caller]] = {}
        self._next = 0
        self._silent = False

    def __bool__(self) -> bool:
        """True while there is a listener to tell."""
        with self._lock:
            return bool(self._listeners)

    def add(self, listener: Listener, *, scope: Caller = HOST) -> Callable[[], None]:
        """Tells `listener` of each job that `scope` may see; the function returned removes it, and may be called again."""
        with self._lock:
            number = self._next
            self._next += 1
            self._listeners[number] = (listener, scope)

        def remove() -> None:
            with self._lock:
                self._listeners.pop(number, None)

        return remove

    def tell(self, record: JobRecord) -> None:
        """Calls every listener that is there now and still there when its turn comes."""
        with self._lock:
            numbers = tuple(self._listeners)
        for number in numbers:
            with self._lock:
                found = None if self._silent else self._listeners.get(number)
            if found is None:
                continue
            listener, scope = found
            if not record.visible_to(scope):
                continue
            try:
                listener(record)
            except Exception:  # noqa: BLE001  (whatever it raises is its own affair)
                _log.exception("a listener failed for job %s", record.id)

    def silence(self) -> None:
        """Begins no further call, now and for ever."""
        with self._lock:
            self._silent = True
            self._listeners.clear()


class Notices:
    """One thread that tells listeners of settled jobs, job by job in order of commit."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._queue: queue.SimpleQueue[JobRecord | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="stockade-notices", daemon=True)
        self._thread.start()

    def post(self, record: JobRecord) -> None:
        """Hands over one settled job; returns at once."""
        self._queue.put(record)

    def close(self, timeout: float) -> None:
        """Ends the thread after what was posted, waiting at most `timeout` seconds; once is enough."""
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            self._listeners.tell(record)


def release(waiter: Waiter, record: JobRecord) -> None:
    """Gives the record to one waiter, unless it has gone away."""
    try:
        waiter.set_result(record)
    except InvalidStateError:
        pass  # cancelled by who was waiting
