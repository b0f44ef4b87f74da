"""A terminal is a way between a job and whoever sits at its other end: what a job can do with its own, and to others'."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import time
from pathlib import Path

import pytest

from stockade import Executor, Policy, Terminal
from stockade.launcher.outcome import Exited
from support.attacks import needs_root, unfiltered
from support.dialogue import Dialogue
from support.programs import python, shell
from support.waiting import SLOWNESS

BUILT_IN = pytest.mark.parametrize("seccomp", ["strict", "default", "debug"])

# Types a line into its own terminal, then reads what has been typed.
TYPE_FOR_THE_USER = """
import fcntl, os, select, termios
try:
    for byte in b"typed by the job\\n":
        fcntl.ioctl(0, termios.TIOCSTI, bytes([byte]))
except OSError as error:
    print(os.strerror(error.errno))
else:
    print("read", os.read(0, 100) if select.select([0], [], [], 5)[0] else None)
try: fcntl.ioctl(0, termios.TIOCSTI | 1 << 40, b"x")
except (OSError, OverflowError) as error: print("high bits:", type(error).__name__)
"""
CALLS = """
import ctypes, errno, fcntl, os, struct, termios
def answer(name, function, *arguments):
    try: print(name, function(*arguments))
    except OSError as error: print(name, errno.errorcode[error.errno])
answer("TIOCSETD", fcntl.ioctl, 0, termios.TIOCSETD, struct.pack("i", 2))
answer("TIOCCONS", fcntl.ioctl, 0, termios.TIOCCONS)
answer("TIOCLINUX", fcntl.ioctl, 0, 0x541C, b"\\x03")
answer("TIOCGPTPEER", fcntl.ioctl, 0, 0x5441, os.O_RDWR)
answer("TIOCPKT", fcntl.ioctl, 0, termios.TIOCPKT, struct.pack("i", 1))
answer("console", os.open, "/dev/console", os.O_RDWR)
answer("tty0", os.open, "/dev/tty0", os.O_RDWR)
answer("mknod", os.mknod, "/tmp/tty", 0o20666, os.makedev(4, 0))
answer("init's descriptor", os.open, "/proc/1/fd/3", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
print("vhangup", errno.errorcode[ctypes.get_errno()] if libc.vhangup() else "OK")
"""
# Every terminal that this process can name or reach by a descriptor.
REACH = """
import os
held = sorted({os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")} - {"/proc"})
print(sorted(os.listdir("/dev/pts")), [name for name in held if "/fd" not in name])
for name in os.listdir("/dev/pts"):
    if name != "ptmx":
        with open("/dev/pts/" + name, "w") as terminal: terminal.write("from " + os.environ["ME"] + "\\n")
"""


@BUILT_IN
async def test_no_job_types_for_its_user(seccomp: str) -> None:
    async with Executor(Policy(seccomp=seccomp)) as executor:
        result = await executor.run(python(TYPE_FOR_THE_USER), tty=Terminal())
        assert result.stdout.startswith(b"Operation not permitted\r\n"), result.stdout


@needs_root
async def test_without_the_filter_a_job_types_into_its_own_terminal(tmp_path: Path) -> None:
    """Where the kernel still has TIOCSTI (dev.tty.legacy_tiocsti), which is the case in which the filter matters."""
    async with Executor(Policy(seccomp=unfiltered(tmp_path))) as executor:
        result = await executor.run(python(TYPE_FOR_THE_USER), tty=Terminal())
        legacy = Path("/proc/sys/dev/tty/legacy_tiocsti")
        refused = legacy.exists() and await asyncio.to_thread(legacy.read_text) == "0\n"
        assert (b"Input/output error" if refused else b"read b'typed by the job\\n'") in result.stdout, result.stdout


async def test_what_a_terminal_offers_besides_is_closed() -> None:
    async with Executor(Policy()) as executor:
        result = await executor.run(python(CALLS), tty=Terminal())
        answers = dict(line.rsplit(" ", 1) for line in result.stdout.decode().splitlines())
        assert answers == {
            "TIOCSETD": "EPERM",
            "TIOCCONS": "EPERM",
            "TIOCLINUX": "EPERM",
            "TIOCGPTPEER": "EIO",  # a slave is no master
            "TIOCPKT": "ENOTTY",
            "console": "ENOENT",
            "tty0": "ENOENT",
            "mknod": "EPERM",
            "init's descriptor": answers["init's descriptor"],
            "vhangup": answers["vhangup"],
        }
        assert answers["init's descriptor"] in ("ENOENT", "EACCES")
        assert answers["vhangup"] in ("EPERM", "ENOSYS")


async def test_a_job_holds_its_own_terminal_and_reaches_no_other() -> None:
    async with Executor(Policy()) as executor:
        first = Dialogue(executor, await executor.start(shell("echo here; exec cat"), tty=Terminal(), env={"ME": "first"}))
        await first.expect(b"here\r\n")
        second = await executor.run(python(REACH), tty=Terminal(), env={"ME": "second"})
        assert second.stdout == b"['0', 'ptmx'] ['/dev/pts/0']\r\nfrom second\r\n"
        await first.job.write_stdin(b"quiet\n")
        assert await first.expect(b"quiet\r\nquiet\r\n") == b"quiet\r\nquiet\r\n"  # and nothing from the second
        await first.job.kill(grace=0)


async def test_two_terminals_of_one_job_do_reach_each_other() -> None:
    """The control: in one devpts instance the same program writes to both."""
    async with Executor(Policy()) as executor:
        program = f"import pty, sys; raise SystemExit(pty.spawn([sys.executable, '-c', {REACH!r}]))"
        result = await executor.run(python(program), tty=Terminal(), env={"ME": "inner"})
        assert result.stdout.count(b"from inner") == 2


async def test_a_process_in_another_session_has_no_controlling_terminal_of_ours() -> None:
    program = """
import errno, fcntl, os, termios
if os.fork() == 0:
    os.setsid()
    try: os.open("/dev/tty", os.O_RDWR)
    except OSError as error: print("tty", errno.errorcode[error.errno], flush=True)
    try: fcntl.ioctl(0, termios.TIOCSCTTY, 1)
    except OSError as error: print("steal", errno.errorcode[error.errno], flush=True)
    os._exit(0)
os.wait()
"""
    async with Executor(Policy()) as executor:
        result = await executor.run(python(program), tty=Terminal())
        assert result.stdout == b"tty ENXIO\r\nsteal EPERM\r\n"


async def test_a_daemon_that_holds_the_terminal_does_not_hold_up_the_end() -> None:
    program = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.write(1, b"daemon\\n")
    while True: time.sleep(1)
time.sleep(0.2)
"""
    async with Executor(Policy()) as executor:
        began = time.monotonic()
        result = await executor.run(python(program), tty=Terminal())
        assert (result.stdout, result.outcome, result.record.notes) == (b"daemon\r\n", Exited(0), ())
        assert time.monotonic() - began < 4 * SLOWNESS


async def test_a_terminal_that_was_given_to_somebody_outside_is_given_up(workspace: Path) -> None:
    """Its holder keeps the slave of a terminal that has no other end any more."""
    program = """
import array, socket
line = socket.socket(socket.AF_UNIX)
line.connect("s")
line.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
print("given", flush=True)
"""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(workspace / "s"))
        os.chmod(workspace / "s", 0o777)
        server.listen(1)
        server.settimeout(15)

        def accept() -> int:
            line, _ = server.accept()
            with line:
                _, ancillary, _, _ = line.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            return array.array("i", ancillary[0][2])[0]

        async with Executor(Policy(workspace=str(workspace))) as executor:
            job = await executor.start(python(program), tty=Terminal())
            held = await asyncio.to_thread(accept)
            try:
                record = await job.wait(20)
                assert record.outcome == Exited(0)
                assert "stdout was still held open 5 s after the last process was gone" in record.notes
                assert (await executor.read_bytes(job.id)).data == b"given\r\n"
                with pytest.raises(OSError, match="Input/output error"):
                    os.write(held, b"from outside")
            finally:
                os.close(held)


@pytest.mark.parametrize(
    "settings",
    [
        "raw -echo",
        "intr ^- quit ^- eof ^- susp ^-",
        "tostop -onlcr olcuc",
        "min 255 time 255 -icanon",
        "0",
        "sane extproc",
        "cstopb parenb",
    ],
)
async def test_whatever_a_job_makes_of_its_terminal_it_can_be_typed_to_and_ended(settings: str) -> None:
    async with Executor(Policy()) as executor:
        talk = Dialogue(executor, await executor.start(shell(f"stty {settings}; echo 1234; sleep 60"), tty=Terminal()))
        await talk.expect(b"1234")
        await talk.job.write_stdin(b"\x00\xff\x03\x04\x1a\x11\x7f")
        if settings != "0":  # speed 0 hangs up, and ^C may have ended it
            await talk.job.resize(2, 2)
        record = await talk.job.kill(grace=0.1)
        assert record.outcome is not None


async def test_a_stopped_terminal_holds_its_job_up_and_nobody_else() -> None:
    """Ctrl-S: the job's next write waits; its end does not."""
    async with Executor(Policy()) as executor:
        talk = Dialogue(executor, await executor.start(shell("echo ready; read -r; yes | head -c 1000000; sleep 60"), tty=Terminal()))
        await talk.expect(b"ready")
        await talk.job.write_stdin(b"\x13\n")
        began = time.monotonic()
        await talk.job.kill(grace=0.1)
        assert time.monotonic() - began < 4


async def test_without_a_character_for_it_the_end_of_file_is_ctrl_d() -> None:
    async with Executor(Policy()) as executor:
        talk = Dialogue(executor, await executor.start(shell("stty eof ^-; echo one; head -c 3 | od -c; "), tty=Terminal()))
        await talk.expect(b"one")
        await talk.job.close_stdin()
        await talk.job.write_stdin(b"x\n")
        assert b"004   x" in (await talk.job.result()).stdout
    async with Executor(Policy()) as executor:
        talk = Dialogue(executor, await executor.start(shell("stty eof ^A; echo one; cat; echo end"), tty=Terminal()))
        await talk.expect(b"one")
        await talk.job.close_stdin()
        assert (await talk.job.result()).stdout.endswith(b"end\r\n")


async def test_a_job_takes_no_more_terminals_than_its_instance_has() -> None:
    program = """
import os
held = []
try:
    while len(held) < 1000: held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError as error: print(len(held), error.strerror)
"""
    async with Executor(Policy()) as executor:
        assert (await executor.run(python(program), tty=Terminal())).stdout == b"63 No space left on device\r\n"
        assert (await executor.run(["tty"], tty=Terminal())).stdout == b"/dev/pts/0\r\n"
