"""Interactive jobs for a supervisor without any privilege."""

from __future__ import annotations

from stockade import Executor, Policy, Terminal
from stockade.launcher.outcome import Exited
from support.dialogue import shell_on_terminal
from support.programs import shell


async def test_a_pipe_stays_open_until_it_is_closed() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(["cat", "/dev/stdin"], interactive=True)
        await job.write_stdin(b"one ")
        await job.write_stdin(b"two")
        await job.close_stdin()
        assert (await job.result()).stdout == b"one two"


async def test_a_terminal_is_the_job_s_own_and_controls_its_session() -> None:
    async with Executor(Policy()) as executor:
        bash = await shell_on_terminal(executor, tty=Terminal(rows=30, columns=90))
        await bash.type(b"tty; stty size; stat -c %u:%a /dev/pts/0\n", b"/dev/pts/0\r\n30 90\r\n1000:620\r\n")
        await bash.expect(b"ready> ")
        await bash.type(b"cat\n", b"cat\r\n")
        await bash.type(b"hello\n", b"hello\r\nhello\r\n")  # it is in the foreground
        await bash.type(b"\x1a", b"Stopped")
        await bash.expect(b"ready> ")
        await bash.type(b"fg\n", b"fg\r\ncat\r\n")
        await bash.type(b"again\n", b"again\r\nagain\r\n")
        await bash.type(b"\x03", b"ready> ")
        await bash.job.resize(10, 20)
        await bash.type(b"stty size\n", b"10 20\r\n")
        await bash.expect(b"ready> ")
        await bash.type(b"\x04", b"exit")
        assert (await bash.job.wait(10)).outcome == Exited(0)


async def test_without_sockets_too() -> None:
    async with Executor(Policy(seccomp="strict", network="none")) as executor:
        result = await executor.run(shell("test -t 0 && echo yes"), tty=Terminal())
        assert (result.stdout, result.outcome) == (b"yes\r\n", Exited(0))
