"""What an executor owns while it is open: the state directory, the cgroup, the fork server, the pump, the bank, the registry.

Opened in that order and closed in the reverse one. Nothing of it is shared between executors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from stockade.bank.artifacts import ArtifactStore
from stockade.bank.bank import Bank
from stockade.config import CgroupEntry, Config
from stockade.confinement import is_inside
from stockade.errors import HostUnfit, PolicyError, StateError
from stockade.jobs import directory
from stockade.jobs.control import ControlSocket, Kill
from stockade.jobs.records import JobRecord
from stockade.jobs.recovery import recover
from stockade.jobs.registry import Registry
from stockade.jobs.store import Store
from stockade.launcher import etcdir, host
from stockade.launcher.idslots import IdSlots
from stockade.launcher.sandboxes import Sandboxes
from stockade.launcher.spawn import ForkServer
from stockade.launcher.stdio import Pump
from stockade.launcher.waiting import wait_done
from stockade.sandbox import cgroup, delegation, seccomp
from stockade.sandbox.spec import CgroupLimits, Host, Identity

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)

FILE_THREADS: Final = 4
WATCH_THREADS: Final = 2
REMOVAL_THREADS: Final = 4
SCRATCH_BOUND: Final = 2.0  # seconds until the cgroup of a probe must be empty
SETTLED_DELAY: Final = 0.001  # seconds between the end of a job and what is made for the next one


class Engine:
    """Everything that jobs need; made by `open`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.identity = host.find_identity()
        self._closing = contextlib.AsyncExitStack()
        self._files = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="stockade-files")
        # A limit must hold while every file thread is busy, and a job must be able to end.
        self._watching = ThreadPoolExecutor(WATCH_THREADS, thread_name_prefix="stockade-watch")
        self._removing = ThreadPoolExecutor(REMOVAL_THREADS, thread_name_prefix="stockade-removal")
        self._hosts: dict[str, Host] = {}
        self._looking = threading.Lock()  # the first jobs of a root may come at once, each on a thread
        self._programs: dict[str, bytes] = {}
        self.writable: frozenset[str] = frozenset()  # real paths that jobs of this executor could write to so far
        self._state: directory.StateDirectory
        self.tree: cgroup.Tree
        self.server: ForkServer
        self.pump: Pump
        self.bank: Bank
        self.artifacts: ArtifactStore
        self.registry: Registry
        self.sandboxes: Sandboxes
        self.slots: IdSlots | None = None

    @classmethod
    async def open(cls, config: Config, kill: Kill) -> Engine:
        """Opens all of it; `kill` is called when another process asks for it.

        Raises: HostUnfit, StateError; nothing is left open then.
        """
        engine = cls(config)
        try:
            await engine._call_to_the_end(engine._open_places)
            await engine._start_server()
            control = ControlSocket(engine._state.layout, kill)
            engine._closing.push_async_callback(control.close)
            opening = asyncio.create_task(control.open(), name="stockade-control-open")
            if (cancelled := await wait_done(opening)) is not None:
                raise cancelled
            opening.result()
        except BaseException:
            closing = asyncio.create_task(engine.close(), name="stockade-close")
            if (late := await wait_done(closing)) is not None:
                raise late from None
            if not closing.cancelled() and (error := closing.exception()) is not None:
                _log.error("what had been opened could not be closed", exc_info=error)
            raise
        return engine

    async def close(self) -> None:
        """Closes all of it; every job must have settled, those that have not die with the fork server."""
        try:
            await self._closing.aclose()
        finally:
            for threads in (self._watching, self._removing, self._files):
                await asyncio.to_thread(threads.shutdown)

    def _on_close(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Has something that blocks called on close, in reverse order."""

        async def later() -> None:
            await self.call(function, *args, **kwargs)

        self._closing.push_async_callback(later)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs something that blocks, on a thread of this engine."""
        return await _on_thread(self._files, function, *args, **kwargs)

    async def call_watching(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `call`, for what looks at a job that runs; never waits for files."""
        return await _on_thread(self._watching, function, *args, **kwargs)

    async def call_removing(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `call`, for what removes a job that has ended, which can take long; nobody else waits for it."""
        return await _on_thread(self._removing, function, *args, **kwargs)

    async def _call_to_the_end(self, function: Callable[[], T]) -> T:
        """As `call`, for what makes something that has to be closed: a cancellation waits until it has been made."""
        work = asyncio.get_running_loop().run_in_executor(self._files, function)
        if (cancelled := await wait_done(work)) is not None:
            raise cancelled
        return work.result()

    def get_ahead(self, streams: tuple[str, ...]) -> None:
        """Makes what the next job will need, soon: one has just ended, and whoever waited for it is to have the processors first."""
        self.sandboxes.note_end()
        if self.config.standby:
            asyncio.get_running_loop().call_later(SETTLED_DELAY, self._make_next, streams)

    def _make_next(self, streams: tuple[str, ...]) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._files.submit(self.bank.make_spare, streams)
            self.sandboxes.build_due()

    @property
    def state_root(self) -> str:
        """The real path of the state directory. Blocks."""
        return os.path.realpath(self._state.layout.root)

    def host(self, root: str) -> Host:
        """The trees of a root ("host": the host's own), looked at once. Blocks. Raises: InvalidRequest, where it is no directory."""
        with self._looking:
            if root not in self._hosts:
                place = "/" if root == "host" else root
                host.check_root(place)
                etc = tempfile.mkdtemp(prefix="etc-", dir=self._state.layout.run)
                os.chmod(etc, 0o755)  # noqa: S103 - it is the /etc of every job
                etcdir.compose(os.path.join(place, "etc"), etc)
                self._hosts[root] = host.find_host(
                    identity=self.identity, controllers=self.tree.controllers, etc=etc, root=place, cpuset=self.tree.cpuset()
                )
            return self._hosts[root]

    async def load_filter(self, name: str) -> None:
        """Hands a profile that `check_filter` has compiled to the fork server, once."""
        await self.server.add_filter(name, self._programs[name])

    def grant(self, places: Iterable[str]) -> None:
        """Remembers what jobs can write to from now on: no later policy is followed through a link in it."""
        with self._looking:
            self.writable |= frozenset(places)

    def check_filter(self, name: str) -> None:
        """Compiles a seccomp profile (a built-in name or the path of an OCI file), once; blocks.

        Raises: PolicyError, also where the file lies in a directory that jobs can write to.
        """
        if name.startswith("/"):
            real = os.path.realpath(name)
            if any(is_inside(real, top) for top in self.writable):
                raise PolicyError(
                    f"seccomp: the profile {name!r} lies where jobs can write",
                    field="seccomp",
                    hint="keep it outside of the workspace and the rw paths: a job could loosen it for the next one",
                )
        if name not in self._programs:
            self._programs[name] = compile_filter(name)

    def _open_places(self) -> None:
        close = self._on_close
        path = self.config.state_dir
        if path is None:
            directory.sweep(tempfile.gettempdir())
            path = tempfile.mkdtemp(prefix=directory.TEMPORARY_PREFIX)
            close(shutil.rmtree, path, ignore_errors=True)
        self._state = directory.StateDirectory.open(path, temporary=self.config.state_dir is None)
        close(self._state.close)
        for entry in os.scandir(self._state.layout.run):  # of an executor that died here
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        self._open_cgroup()
        if self.identity is Identity.RANGE:
            self.slots = IdSlots()
            close(self.slots.close)
        self.bank = Bank(self._state.layout.bank)
        close(self.bank.close)
        with contextlib.suppress(OSError):  # what resists is tried again next time
            self.bank.empty_trash()
            self.bank.sweep_spares()
        self.artifacts = ArtifactStore(self.bank)
        close(self.artifacts.close)
        store = Store.open(self._state.layout.database)
        close(store.close)
        lost = recover(store, self._state.instance, account=self._account_of_lost)
        self.registry = Registry(store, self._state.instance, recovered=lost)
        close(self._close_registry)
        self.pump = Pump()
        close(self.pump.close)

    def _close_registry(self) -> None:
        if left := self.registry.close():
            raise StateError(
                f"the registry {self._state.layout.database!r} was closed with {left} changes that could not be written",
                hint="make room on its file system; the log names them, and the next executor there calls their jobs lost",
            )

    def _open_cgroup(self) -> None:
        base = delegation.choose_base(is_root=self.identity is Identity.RANGE, wanted=self.config.cgroup)
        delegation.step_aside(base)
        cgroup.sweep(base)
        self.tree = cgroup.Tree(base, self._state.instance)
        self._on_close(self.tree.close)

    def _account_of_lost(self, record: JobRecord) -> JobRecord:
        """What the bank holds of a job that died with its executor, which will write no more."""
        self.bank.seal(record.id)
        sizes = self.bank.account(record.id).sizes()
        out = sizes.get("stdout", sizes.get("output", 0))
        return record.with_(stdout_bytes=out, stderr_bytes=sizes.get("stderr", 0))

    def _make_leaf(self, name: str) -> cgroup.Leaf:
        leaf = self.tree.make_leaf(name, CgroupLimits())
        self._on_close(leaf.close)
        return leaf

    async def _start_server(self) -> None:
        leaf = await self._call_to_the_end(lambda: self._make_leaf("server"))
        log_path = f"{self._state.layout.run}/forkserver.log"
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self.server = await ForkServer.start(leaf=leaf, identity=self.identity, log=log)
        except HostUnfit as error:
            said = await self.call(_last_line, log_path)
            raise HostUnfit(f"{error.message}; it said: {said!r}", feature=error.feature, hint=error.hint) from None
        finally:
            os.close(log)
        self._closing.push_async_callback(self.server.close)
        if self.config.cgroup_entry is CgroupEntry.AUTO:
            await self._try_entry()
        else:
            await self.server.enter_by_procs()
        self.sandboxes = Sandboxes(self.tree, self.server, self.slots, standby=self.config.standby)
        self._closing.push_async_callback(self.sandboxes.close)

    async def _try_entry(self) -> None:
        """Has the fork server try whether an init can be cloned into its cgroup."""
        scratch = await self._call_to_the_end(lambda: self._make_leaf("probe"))
        try:
            await self.server.probe(scratch)
        finally:
            await self._call_to_the_end(lambda: _remove_when_empty(scratch))


async def _on_thread(threads: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, lambda: function(*args, **kwargs))


def _remove_when_empty(leaf: cgroup.Leaf) -> None:
    """A probe that was called off may have its child there for a moment; what stays longer goes with the tree."""
    if leaf.wait_empty(SCRATCH_BOUND):
        with contextlib.suppress(OSError):
            leaf.remove()


def compile_filter(name: str) -> bytes:
    """The BPF program of a seccomp profile for this machine. Blocks. Raises: PolicyError."""
    if name.startswith("/"):
        try:
            with open(name, encoding="utf-8") as file:
                text = file.read(1 << 20)
        except (OSError, UnicodeDecodeError) as error:
            raise PolicyError(
                f"seccomp: the profile {name!r} cannot be read: {error}", field="seccomp", hint="name a readable file"
            ) from None
        profile = seccomp.parse_profile(text, origin=name)
    else:
        profile = seccomp.load_profile(name)
    return seccomp.compile_profile(profile, os.uname().machine)


def _last_line(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as log:
        lines = log.read().splitlines()
    return lines[-1][:300] if lines else "nothing"
