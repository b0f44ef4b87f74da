"""What a job can do to others through a file that both have: leases, and signals that come of descriptors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.launcher.outcome import Exited
from support.attacks import unfiltered
from support.programs import python

# Takes what would hold up everybody else, says what it got, and keeps it until it is killed.
LEASE = """
import errno, fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
file, directory = os.open("file", os.O_RDWR), os.open(".", os.O_RDONLY)
got = []
for descriptor, command, argument in ((file, 1024, fcntl.F_WRLCK), (directory, 1026, 0x8000003F)):
    try:
        got.append(fcntl.fcntl(descriptor, command, argument))
    except OSError as error:
        got.append(errno.errorcode[error.errno])
print(*got, flush=True)
time.sleep(30)
"""


@pytest.mark.parametrize("seccomp", ["strict", "default", "debug"])
async def test_a_job_cannot_make_the_host_wait_for_it_by_a_lease(workspace: Path, tmp_path: Path, seccomp: str) -> None:
    """Control: without the filter the job gets both, and whoever opens the file must wait for it."""
    (workspace / "file").write_text("")
    async with Executor(Policy(workspace=str(workspace))) as executor:
        for profile, expected in ((seccomp, b"EPERM EPERM\n"), (unfiltered(tmp_path), b"0 0\n")):
            job = await executor.start_with_policy(python(LEASE), executor.policy.replace(seccomp=profile))
            async for piece in job.follow():
                assert piece == expected
                break
            try:
                os.close(os.open(workspace / "file", os.O_RDONLY | os.O_NONBLOCK))
                held = False
            except BlockingIOError:
                held = True
            assert held == (profile != seccomp)
            await job.kill(grace=0)


async def test_a_descriptor_signals_nobody_outside_and_ends_no_init() -> None:
    """F_SETOWN names who gets SIGIO, F_SETSIG makes it any signal. Control: the job's own child dies of it."""
    script = """
import errno, fcntl, os, signal, struct, sys, time

def own(target, number):
    ours, theirs = os.pipe()
    fcntl.fcntl(ours, fcntl.F_SETOWN, target)
    fcntl.fcntl(ours, 10, number)
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)
    os.write(theirs, b"x")
    return "sent"

child = os.fork()
if child == 0:
    time.sleep(20)
    os._exit(0)
for target in (1, -1, int(sys.argv[1]), int(sys.argv[2])):
    for number in (9, 19, 15, 34):
        try:
            said = own(target, number) if target not in (-1,) else fcntl.fcntl(0, 8, -2**31)
        except OSError as error:
            said = errno.errorcode[error.errno]
        if target > 1:
            print(said)
own(child, 9)
print(os.WTERMSIG(os.waitpid(child, 0)[1]))
sys.stdout.flush()
os._exit(23)
"""
    async with Executor(Policy()) as executor:
        server = executor._opened().server.pid
        result = await executor.run(python(script, str(server), str(os.getpid())))
        assert result.outcome == Exited(23), result.stderr
        assert result.stdout.split() == [b"ESRCH"] * 8 + [b"9"]
        assert (await executor.run(["/usr/bin/true"])).ok
