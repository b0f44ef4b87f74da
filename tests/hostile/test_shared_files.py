"""What a job can do to others through files that both have: leases, watches, sockets, and signals that come of descriptors."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.launcher.outcome import Exited
from support.attacks import unfiltered
from support.programs import PYTHON, python

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


# Opens inotify instances until it is refused, then adds watches until it is refused; keeps all of them.
WATCH = """
import ctypes, errno, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def until_refused(function):
    count = 0
    while function(count) >= 0:
        count += 1
    return count, errno.errorcode[ctypes.get_errno()]
instances = until_refused(lambda count: libc.inotify_init1(0))
def watch(count):
    os.mkdir(str(count))
    return libc.inotify_add_watch(int(sys.argv[1]), str(count).encode(), 0x100)
print(*instances, *(until_refused(watch) if int(sys.argv[1]) else ()), flush=True)
time.sleep(60)
"""


def can_watch() -> bool:
    """True where our own user may have one more inotify instance."""
    descriptor = ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC)
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor >= 0


async def test_a_job_cannot_use_up_what_the_host_may_watch() -> None:
    """inotify instances and watches of a user namespace are charged to its maker too: 128 and no more were root's, and a job had them.

    Control: the same program takes all of its user's outside.
    """
    async with Executor(Policy()) as executor:
        job = await executor.start(python(WATCH, "0"))
        assert await anext(aiter(job.follow())) == b"32 EMFILE\n"
        assert can_watch()
        await job.kill(grace=0)
    outside = await asyncio.create_subprocess_exec(PYTHON, "-c", WATCH, "0", stdout=PIPE)
    assert outside.stdout is not None
    count, why = (await outside.stdout.readline()).split()
    assert (int(count) > 32, why) == (True, b"EMFILE")
    assert not can_watch()
    outside.kill()
    await outside.communicate()


async def test_a_job_may_watch_many_files_and_not_all() -> None:
    async with Executor(Policy(limits={"tmp_inodes": 80_000})) as executor:
        result = await executor.run(
            python("import os; os.chdir('/tmp')\n" + WATCH.replace("time.sleep(60)", ""), "5"),
        )
    given = int(Path("/proc/sys/fs/inotify/max_user_watches").read_text())
    assert result.stdout == b"32 EMFILE %d ENOSPC\n" % min(65_536, given // 4)


async def test_a_socket_of_the_host_in_a_read_only_path_can_be_connected_to(tmp_path: Path) -> None:
    """So says the README: read-only is for files; where such a socket is, the job may talk to whoever listens.

    Control: without the path there is no such socket.
    """
    place = tmp_path / "place"
    place.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place / "s"))
        os.chmod(place / "s", 0o666)
        server.listen()
        connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        async with Executor(Policy(ro=[str(place)])) as executor:
            shown = await executor.run(python(connect, str(place / "s")))
            hidden = await (await executor.start_with_policy(python(connect, str(place / "s")), Policy())).result()
    assert shown.ok
    assert b"FileNotFoundError" in hidden.stderr
