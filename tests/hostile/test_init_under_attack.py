"""Pid 1 of a job, its memory, its report and its parent: what stands between a job and those who hold it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.launcher.outcome import Exited, Signaled
from support.attacks import inside, payload, unfiltered, within
from support.programs import python, shell
from support.waiting import SLOWNESS

READ = ("mem", "maps", "environ", "cmdline", "auxv", "fd/0", "root/.", "cwd/.", "exe", "ns/pid", "task/1/mem", "status")


@pytest.mark.parametrize("seccomp", ["strict", "default", "debug", "unfiltered"])
async def test_init_can_neither_be_read_nor_traced_nor_robbed_of_a_descriptor(tmp_path: Path, seccomp: str) -> None:
    """Whatever the filter lets through: init is not dumpable and its memory belongs to the host's user namespace.

    Control: the same attempts on a child of the job's own, of the same uid, succeed where the filter lets them through.
    """
    policy = Policy(seccomp=unfiltered(tmp_path) if seccomp == "unfiltered" else seccomp)
    async with Executor(policy) as executor:
        answers = await within(executor, "intrude", "1")
        control = await within(executor, "intrude", "child")
    assert {answers[f"open {name}"] for name in READ} == {"ENOENT"}  # hidepid=invisible: what cannot be traced is not there
    for name in ("ptrace seize", "ptrace attach", "process_vm_readv", "process_vm_writev", "get_robust_list"):
        assert answers[name] == "EPERM", name
    expected = {"pidfd_getfd": "EPERM", "kcmp": "EPERM", "process_madvise": "EACCES", "prlimit": "OK", "process_mrelease": "EINVAL"}
    if seccomp != "unfiltered":
        filtered = {"pidfd_getfd": "ENOSYS", "kcmp": "ENOSYS", "process_madvise": "EPERM", "prlimit": "EPERM", "process_mrelease": "ENOSYS"}
        expected = filtered
    assert {name: answers[name] for name in expected} == expected
    assert {name: answer for name, answer in control.items() if name.startswith("open ") and answer != "OK"} == {}
    traced = "OK" if seccomp in ("debug", "unfiltered") else "EPERM"
    assert control["ptrace attach"] == control["process_vm_readv"] == control["process_vm_writev"] == traced
    if seccomp == "unfiltered":
        assert control["pidfd_getfd"] == "OK"


async def test_init_outlives_every_signal_by_every_call_and_reports_the_end() -> None:
    """Control: an ordinary process dies of them, which test_between_jobs shows for kill(-1)."""
    async with Executor(Policy()) as executor:
        answers = await within(executor, "signal_init", "20")
        assert (answers["refused"], answers["parent"], answers["real time"]) == ([], 1, "EPERM")
        # Init of the next job is another one and works: stop, kill and terminate it, then end with a code of our own.
        result = await executor.run(shell("for n in STOP KILL TERM INT HUP QUIT SEGV TSTP 34 64; do kill -$n 1; done; exit 23"))
    assert result.outcome == Exited(23)


async def test_a_slowed_down_init_still_ends_its_job_at_the_deadline() -> None:
    """The same uid may make init the last to run (nice 19, SCHED_IDLE) and keep every processor busy: the executor needs no init."""
    burn = """
import os, time
os.setpriority(os.PRIO_PROCESS, 1, 19)
os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))
for _ in range(8):
    if os.fork() == 0:
        break
end = time.time() + 20
while time.time() < end:
    pass
"""
    policy = Policy(limits={"wall_time": 0.5, "grace": 0.1})
    async with Executor(policy) as executor, asyncio.timeout(15 * SLOWNESS):
        result = await executor.run(python(burn))
    assert result.outcome.kind == "timed_out"


async def test_a_forged_report_is_only_output() -> None:
    """What init would say, on every stream that the job has; nothing else of init's can be reached (see above)."""
    lies = '{"v":1,"is":"ended","code":0}'
    script = f"for i in 1 2; do echo '{lies}'; echo '{lies}' >&2; done; ls /proc/self/fd | tr '\\n' ' '; exit 9"
    async with Executor(Policy()) as executor:
        result = await executor.run(shell(script))
    assert result.outcome == Exited(9)
    assert result.stdout.decode().splitlines() == [lies, lies, "0 1 2 3 "]  # 3 is ls's own, of the directory


async def test_a_flood_of_signals_at_init_delays_nothing() -> None:
    flood = """
import os, time
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        end = time.time() + 20
        while time.time() < end:
            for number in (17, 15, 1, 34, 40, 64):
                os.kill(1, number)
    children.append(pid)
time.sleep(0.5)
os._exit(7)
"""
    async with Executor(Policy()) as executor, asyncio.timeout(15 * SLOWNESS):
        result = await executor.run(python(flood))
    assert result.outcome == Exited(7)
    assert result.record.duration is not None
    assert result.record.duration < 5


async def test_input_that_was_given_can_be_read_and_not_rewritten() -> None:
    """/proc/self/fd/0 opens a memory file anew, with whatever access its mode allows; it is sealed. Control: one of the job's own."""
    script = """
import os, sys
for source in (0, os.memfd_create("own")):
    descriptor = os.open(f"/proc/self/fd/{source}", os.O_RDWR)
    for attempt in (lambda: os.write(descriptor, b"x"), lambda: os.ftruncate(descriptor, 1 << 30)):
        try:
            attempt()
            print("OK")
        except PermissionError as error:
            print(error.errno)
print(sys.stdin.read())
"""
    async with Executor(Policy()) as executor:
        result = await executor.run(python(script), stdin=b"given")
    assert result.stdout.split() == [b"1", b"1", b"OK", b"OK", b"given"]


async def test_the_fork_server_is_out_of_sight_and_lives_through_a_hostile_job() -> None:
    async with Executor(Policy()) as executor:
        server = executor._opened().server.pid
        listing = await executor.run(shell(f"ls -d /proc/[0-9]*; kill -0 {server} 2>&1; kill -9 {server} 2>&1; exit 0"))
        assert listing.stdout.count(b"No such process") == 2
        assert listing.stdout.splitlines()[0] == b"/proc/2"  # the shell itself, and no other
        again = await executor.run(["/usr/bin/true"])
        assert again.ok
        assert executor._opened().server.pid == server
        assert os.path.exists(f"/proc/{server}")


@pytest.mark.parametrize("number", [6, 9, 11, 31])
async def test_init_ending_is_never_mistaken_for_the_commands_end(number: int) -> None:
    async with Executor(Policy()) as executor:
        result = await executor.run(python(f"import os; os.kill(1, 9); os.kill(os.getpid(), {number})"))
    assert result.outcome == Signaled(number)


async def test_the_rules_hold_in_a_sandbox_that_was_built_ahead() -> None:
    """The second job of a shape runs in a sandbox that stood by; a third attack on it finds what a fresh one has."""
    async with Executor(Policy()) as executor:
        first = await within(executor, "intrude", "1")
        second = await within(executor, "intrude", "1")
        assert first == second
        views = [await executor.run(payload("power")) for _ in range(2)]
    assert views[0].stdout == views[1].stdout
    assert (await inside(Policy(), "intrude", "1")) == first
