"""Trials of control groups: a cgroup of our own, the ways into it, killing, freezing, counting, and each controller.

Each trial makes a cgroup as an executor does and removes it; it is locked, so that no sweep takes it away meanwhile.

Rests on cgroups(7), clone3(2) and the kernel's cgroup-v2 documentation.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from errno import ENOENT
from functools import partial

from stockade.errors import HostUnfit
from stockade.sandbox import cgroup, delegation, hostfacts, syscalls
from stockade.sandbox.causes import missing_controller, refused_cgroup
from stockade.sandbox.spec import CgroupLimits, MiB
from stockade.sandbox.trial import BOUND, Child, Died, Explained, NoEffect, NotApplicable, Probe, Setting, in_child, wait_for_end_of

_CPU = str(min(os.sched_getaffinity(0)))
# controller: what a leaf is given, the file in which it is read back, what then stands there, what holds without the controller
_CONTROLLERS = {
    "memory": (CgroupLimits(memory_max=64 * MiB, swap_max=0, oom_group=True), "memory.max", str(64 * MiB), "memory is sampled"),
    "pids": (CgroupLimits(pids_max=16), "pids.max", "16", "processes are bounded by RLIMIT_NPROC in the job's user namespace"),
    "cpu": (CgroupLimits(cpu_max=0.5, cpu_weight=100), "cpu.max", "50000 100000", "nothing bounds the share of cpu"),
    "io": (CgroupLimits(), "io.max", "", "nothing bounds input and output"),
    "cpuset": (CgroupLimits(cpuset_cpus=_CPU), "cpuset.cpus", _CPU, "nothing binds jobs to cpus"),
}


@contextlib.contextmanager
def _tree(setting: Setting) -> Iterator[cgroup.Tree]:
    """A cgroup as an executor has it."""
    tree = _make_tree(setting)
    if tree is None:
        raise NotApplicable("not tried: no cgroup can be made, as was said above")
    try:
        yield tree
    finally:
        tree.close()


def _make_tree(setting: Setting) -> cgroup.Tree | None:
    """None where it fails, after `_make` has said why."""
    if setting.cgroup is None:
        return None
    try:
        return cgroup.Tree(setting.cgroup, f"doctor-{os.getpid()}")
    except HostUnfit:
        return None


@contextlib.contextmanager
def _leaf(tree: cgroup.Tree, name: str = "leaf", limits: CgroupLimits | None = None) -> Iterator[cgroup.Leaf]:
    leaf = tree.make_leaf(name, limits or CgroupLimits())
    try:
        yield leaf
    finally:
        leaf.wait_empty(BOUND)
        leaf.remove()


@contextlib.contextmanager
def _occupied(leaf: cgroup.Leaf) -> Iterator[Child]:
    """A child that sits in the leaf and waits."""
    hold_read, hold_write = os.pipe2(os.O_CLOEXEC)
    here_read, here_write = os.pipe2(os.O_CLOEXEC)

    def sit() -> str:
        os.close(hold_write)
        _join(leaf)
        os.write(here_write, b"h")
        return wait_for_end_of(hold_read)

    child = Child(sit)
    try:
        os.close(here_write)
        child.go()
        if not os.read(here_read, 1):
            child.answer()  # raises what went wrong
        yield child
    finally:
        for descriptor in (hold_read, hold_write, here_read):
            os.close(descriptor)
        child.end()


def _join(leaf: cgroup.Leaf) -> None:
    try:
        procs = leaf.open_procs()
        try:
            os.write(procs, b"0")
        finally:
            os.close(procs)
    except OSError as error:
        raise syscalls.KernelError("write", f"{leaf.name}/cgroup.procs", error.errno or 0) from None


def _make(setting: Setting) -> str:
    if setting.cgroup is not None:
        try:
            cgroup.Tree(setting.cgroup, f"doctor-{os.getpid()}").close()
        except HostUnfit as error:
            cause = refused_cgroup(error, hostfacts.collect())
            raise Explained(error.message, cause.text, cause.fix) from None
    with _tree(setting) as tree, _leaf(tree):
        return f"made with a leaf in {setting.cgroup}"


def _enter_by_procs(setting: Setting) -> str:
    with _tree(setting) as tree, _leaf(tree) as leaf, _occupied(leaf) as child:
        if leaf.processes() != [child.pid] or not leaf.is_populated():
            raise NoEffect("a process that wrote to cgroup.procs is not in the cgroup")
        return "a process joins by cgroup.procs"


def _clone_into(setting: Setting) -> str:
    """As the fork server does it: from a fresh leaf of the same tree."""
    with _tree(setting) as tree, _leaf(tree, "server") as server, _leaf(tree) as leaf:
        try:
            return in_child(partial(_clone_from, server, leaf))
        except NoEffect as error:
            raise Explained(
                str(error),
                "the kernel takes our own cgroup for one that is being killed (it was killed once)",
                "none is needed: jobs join by cgroup.procs; start stockade in a fresh cgroup to have this too",
            ) from None


def _clone_from(server: cgroup.Leaf, leaf: cgroup.Leaf) -> str:
    _join(server)
    try:
        where = in_child(_own_cgroup, flags=syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWCGROUP, cgroup=leaf.directory)
    except Died:
        raise NoEffect("a child dies at birth") from None
    if where != "/":
        raise NoEffect(f"the child's cgroup namespace begins at {where!r}, not at its leaf")
    return "a child is born in its cgroup, which is the root of its cgroup namespace"


def _own_cgroup() -> str:
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as table:
        return delegation.own_path(table.read()) or ""


def _killed_once(setting: Setting) -> str:
    """Not a defect of the host, only good to know: whether a killed cgroup may ever be used again."""
    with _tree(setting) as tree, _leaf(tree) as leaf:
        leaf.kill()
        try:
            in_child(lambda: "", flags=syscalls.CLONE_CLEAR_SIGHAND, cgroup=leaf.directory)
        except Died as death:
            if death.number == signal.SIGKILL:
                return "what is cloned into a cgroup that was killed once dies at birth; every job gets a fresh one"
            raise
        return "a cgroup that was killed once can be cloned into; every job gets a fresh one nevertheless"


def _kill(setting: Setting) -> str:
    with _tree(setting) as tree, _leaf(tree) as leaf, _occupied(leaf) as child:
        begin = time.monotonic()
        _write(leaf, "cgroup.kill", "1")
        status = child.reap()
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise NoEffect(f"the process ended with status {status}, not by SIGKILL")
        return f"a process was killed by its cgroup within {(time.monotonic() - begin) * 1000:.1f} ms"


def _freeze(setting: Setting) -> str:
    with _tree(setting) as tree, _leaf(tree) as leaf, _occupied(leaf):
        with _watched(leaf) as changed:
            _write(leaf, "cgroup.freeze", "1")
            changed("frozen 1")
            _write(leaf, "cgroup.freeze", "0")
            changed("frozen 0")
        return "a process was stopped and resumed by its cgroup"


def _events(setting: Setting) -> str:
    with _tree(setting) as tree, _leaf(tree) as leaf, _occupied(leaf) as child, _watched(leaf) as changed:
        child.kill()
        changed("populated 0")
        return "the end of the last process is told"


@contextlib.contextmanager
def _watched(leaf: cgroup.Leaf) -> Iterator[partial[None]]:
    """A function that waits until cgroup.events says something, by notification alone."""
    try:
        events = os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=leaf.directory)
    except OSError as error:
        raise syscalls.KernelError("open", f"{leaf.name}/cgroup.events", error.errno or 0) from None
    try:
        os.pread(events, 4096, 0)
        yield partial(_await_event, events)
    finally:
        os.close(events)


def _await_event(events: int, line: str) -> None:
    if not cgroup.await_event(events, line, BOUND / 2):
        raise NoEffect(f"cgroup.events did not tell {line!r} in time")


def _cpu_stat(setting: Setting) -> str:
    with _tree(setting) as tree, _leaf(tree) as leaf:
        in_child(partial(_burn, leaf))
        used = leaf.cpu_seconds()
        if used is None:
            raise syscalls.KernelError("open", f"{leaf.name}/cpu.stat", ENOENT)
        if used <= 0:
            raise NoEffect("cpu.stat counted nothing of a busy process")
        return "cpu time is counted without a controller"


def _burn(leaf: cgroup.Leaf) -> str:
    _join(leaf)
    end = time.process_time() + 0.005
    while time.process_time() < end:
        pass
    return ""


def _controller(name: str, setting: Setting) -> str:
    limits, file, expected, instead = _CONTROLLERS[name]
    with _tree(setting) as tree:
        if name not in tree.controllers:
            assert setting.cgroup is not None
            cause = missing_controller(
                name,
                hostfacts.collect(),
                base=setting.cgroup,
                top=_words(f"{delegation.topmost(setting.cgroup)}/cgroup.controllers"),
                available=_words(f"{setting.cgroup}/cgroup.controllers"),
                busy=len(_words(f"{setting.cgroup}/cgroup.procs")),
            )
            raise Explained(f"missing: {instead}", cause.text, cause.fix)
        with _leaf(tree, limits=limits) as leaf:
            found = leaf.read(file)
            if found is None or (expected and found.strip() != expected):
                raise NoEffect(f"{file} reads {found!r} after {expected!r} was written")
            return f"{file} was written and read back" if expected else f"a leaf has {file}"


def _peak(controller: str, setting: Setting) -> str:
    with _tree(setting) as tree:
        if controller not in tree.controllers:
            raise NotApplicable(f"without the {controller} controller there is no {controller}.peak")
        with _leaf(tree) as leaf, _occupied(leaf):
            text = leaf.read(f"{controller}.peak")
            if text is None:
                raise syscalls.KernelError("open", f"{leaf.name}/{controller}.peak", ENOENT)
            return f"it reads {text.strip()} with one process"


def _write(leaf: cgroup.Leaf, name: str, text: str) -> None:
    try:
        leaf.write(name, text)
    except OSError as error:
        raise syscalls.KernelError("write", f"{leaf.name}/{name}", error.errno or 0) from None


def _words(path: str) -> frozenset[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return frozenset(file.read().split())
    except OSError:
        return frozenset()


PROBES = (
    Probe("cgroup", _make),
    Probe("cgroup.procs", _enter_by_procs),
    Probe("cgroup.clone_into", _clone_into, required=False),
    Probe("cgroup.killed_once", _killed_once, required=False),
    Probe("cgroup.kill", _kill),
    Probe("cgroup.freeze", _freeze),
    Probe("cgroup.events", _events),
    Probe("cgroup.cpu_stat", _cpu_stat, required=False),
    *(Probe(f"controller.{name}", partial(_controller, name), required=False) for name in cgroup.CONTROLLERS),
    Probe("memory.peak", partial(_peak, "memory"), required=False),
    Probe("pids.peak", partial(_peak, "pids"), required=False),
)
