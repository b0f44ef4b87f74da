"""Jobs on a terminal of their own, with the programs that people use on one."""

from __future__ import annotations

import pytest

from stockade import Executor, Policy, Terminal
from stockade.errors import InputClosed, InvalidRequest, NotInteractive
from stockade.launcher.outcome import Exited, Killed, Signaled
from support.dialogue import Dialogue, shell_on_terminal
from support.programs import TRUE, python, shell

# What a program finds its terminal to be, as one line.
DESCRIBE = """
import os, sys
own = [os.isatty(number) for number in (0, 1, 2)]
same = os.ttyname(0) == os.ttyname(1) == os.ttyname(2) == "/dev/pts/0"
controlling = os.open("/dev/tty", os.O_RDWR)
print(own, same, os.getsid(0) == os.getpid(), os.tcgetpgrp(controlling) == os.getpgrp(), os.get_terminal_size())
"""
ON_RESIZE = """
import os, signal
signal.signal(signal.SIGWINCH, lambda *_: print("now", *os.get_terminal_size(), flush=True))
print("ready", flush=True)
while True: signal.pause()
"""


@pytest.mark.parametrize("policy", [Policy(), Policy(seccomp="debug"), Policy(seccomp="strict", network="none")], ids=lambda p: p.seccomp)
async def test_a_job_is_a_session_on_a_terminal_of_its_own(policy: Policy) -> None:
    async with Executor(policy) as executor:
        result = await executor.run(python(DESCRIBE), tty=Terminal(rows=33, columns=101))
        assert result.stdout == b"[True, True, True] True True True os.terminal_size(columns=101, lines=33)\r\n"
        assert (result.stderr, result.outcome) == (b"", Exited(0))
        assert (result.record.interactive, result.record.tty, result.record.stderr_bytes) == (True, True, 0)


async def test_a_job_without_a_terminal_has_none() -> None:
    async with Executor(Policy()) as executor:
        result = await executor.run(shell("ls /dev/pts; ls /dev/tty; tty"))
        assert result.stdout == b"ptmx\nnot a tty\n"
        assert not result.record.interactive
        assert not result.record.tty


async def test_where_streams_are_merged_the_terminal_is_that_stream() -> None:
    async with Executor(Policy(merge_streams=True)) as executor:
        job = await executor.start(["tty"], tty=Terminal())
        await job.wait(10)
        assert (await executor.read_bytes(job.id, "output")).data == b"/dev/pts/0\r\n"


async def test_bash_controls_jobs() -> None:
    async with Executor(Policy()) as executor:
        bash = await shell_on_terminal(executor)
        await bash.type(b"tty; stty size\n", b"/dev/pts/0\r\n24 80\r\nready> ")
        await bash.type(b"cat\n", b"cat\r\n")
        await bash.type(b"hello\n", b"hello\r\nhello\r\n")
        await bash.type(b"\x1a", b"Stopped")
        await bash.expect(b"ready> ")
        await bash.type(b"jobs\n", b"[1]+  Stopped                 cat")
        await bash.expect(b"ready> ")
        await bash.type(b"fg\n", b"fg\r\ncat\r\n")
        await bash.type(b"again\n", b"again\r\nagain\r\n")
        await bash.type(b"\x03", b"ready> ")
        await bash.type(b"echo status $?\n", b"status 130\r\nready> ")
        await bash.type(b"sleep 60 &\n", b"ready> ")
        await bash.type(b"jobs\n", b"Running                 sleep 60 &\r\nready> ")
        await bash.type(b"kill -STOP %1; while jobs -r | grep -q .; do sleep 0.01; done; bg\n", b"sleep 60 &\r\nready> ")
        await bash.type(b"kill %1; wait\n", b"ready> ")
        await bash.type(b"\x04", b"exit")
        record = await bash.job.wait(10)
        assert record.outcome == Exited(0)


async def test_python_s_prompt_works_and_an_interrupt_is_an_exception_there() -> None:
    async with Executor(Policy()) as executor:
        prompt = Dialogue(executor, await executor.start(["python3", "-q", "-i"], tty=Terminal(), env={"TERM": "dumb"}))
        await prompt.expect(b">>> ")
        await prompt.type(b"6 * 7\n", b"42\r\n>>> ")
        await prompt.job.close_stdin()
        assert (await prompt.job.wait(10)).outcome == Exited(0)
        prompt = Dialogue(executor, await executor.start(["python3", "-q", "-i"], tty=Terminal(), env={"TERM": "dumb"}))
        await prompt.expect(b">>> ")
        await prompt.type(b"import time; print('asleep', flush=True); time.sleep(60)\n", b"asleep\r\n")
        await prompt.type(b"\x03", b"KeyboardInterrupt\r\n>>> ")
        await prompt.type(b"exit(7)\n", b"exit(7)\r\n")
        assert (await prompt.job.wait(10)).outcome == Exited(7)


async def test_a_new_size_is_told_to_who_is_in_the_foreground() -> None:
    async with Executor(Policy()) as executor:
        watcher = Dialogue(executor, await executor.start(python(ON_RESIZE), tty=Terminal()))
        await watcher.expect(b"ready")
        await watcher.job.resize(40, 132)
        await watcher.expect(b"now 132 40\r\n")
        await watcher.job.resize(1, 4096)
        await watcher.expect(b"now 4096 1\r\n")
        assert (await watcher.job.kill(grace=0.2)).outcome == Killed(by="caller", detail="SIGTERM by the caller", signal=15)


async def test_a_size_that_is_asked_for_at_once_holds_when_the_program_begins() -> None:
    async with Executor(Policy()) as executor:
        job = await executor.start(shell("stty size"), tty=Terminal())
        await job.resize(50, 60)
        assert (await job.result()).stdout in (b"50 60\r\n", b"24 80\r\n50 60\r\n")


async def test_pagers_and_editors_that_need_a_terminal_work(workspace: object) -> None:
    async with Executor(Policy(workspace=str(workspace))) as executor:
        pager = Dialogue(executor, await executor.start(shell("seq 1 500 | more"), tty=Terminal(rows=10)))
        await pager.expect(b"--More--")
        await pager.job.write_stdin(b"q")
        assert (await pager.job.wait(10)).outcome == Exited(0)


async def test_in_canonical_mode_a_line_has_an_end_that_more_does_not_get_past() -> None:
    async with Executor(Policy()) as executor:
        talk = Dialogue(executor, await executor.start(shell("stty -echo; echo ready; head -n 1 | wc -c"), tty=Terminal()))
        await talk.expect(b"ready\r\n")
        assert await talk.job.write_stdin(b"x" * 10_000 + b"\n") == 10_001
        assert (await talk.job.result()).stdout == b"ready\r\n4096\r\n"


async def test_a_program_can_make_terminals_of_its_own() -> None:
    async with Executor(Policy()) as executor:
        result = await executor.run(python("import pty; raise SystemExit(pty.spawn(['tty']))"), tty=Terminal())
        assert (result.stdout, result.outcome) == (b"/dev/pts/1\r\n", Exited(0))


async def test_a_named_signal_reaches_every_process() -> None:
    async with Executor(Policy()) as executor:
        bash = await shell_on_terminal(executor)
        await bash.type(b"(trap 'echo caught; exit' USR1; echo set; while :; do sleep 0.05; done)\n", b"\r\nset")
        assert await bash.job.signal("SIGUSR1")
        record = await bash.job.wait(10)  # bash itself had no handler
        assert record.outcome == Signaled(10)
        with pytest.raises(InvalidRequest, match="'SIGNOPE' is no signal"):
            await bash.job.signal("SIGNOPE")
        assert not await bash.job.signal("usr1")


async def test_what_cannot_be_is_refused() -> None:
    async with Executor(Policy()) as executor:
        for rows, columns in ((0, 80), (24, 0), (24, 4097), (True, 80), ("24", 80)):
            with pytest.raises(InvalidRequest, match=r"rows|columns"):
                Terminal(rows=rows, columns=columns)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="give Terminal"):
            await executor.start(TRUE, tty=(24, 80))
        with pytest.raises(InvalidRequest, match="write it with write_stdin"):
            await executor.start(TRUE, tty=Terminal(), stdin=b"x")
        plain = await executor.start(["cat"], interactive=True)
        with pytest.raises(NotInteractive, match=r"tty=Terminal\(\)"):
            await plain.resize(1, 1)
        await plain.kill(grace=0)
        ended = await executor.start(TRUE, tty=Terminal())
        await ended.wait(10)
        with pytest.raises(InputClosed, match="it has ended: exit 0"):
            await ended.resize(1, 1)
        with pytest.raises(InvalidRequest, match="rows"):
            await ended.resize(0, 1)


async def test_the_plan_says_that_there_will_be_a_terminal() -> None:
    async with Executor(Policy()) as executor:
        spec = await executor.explain(TRUE, tty=Terminal())
        assert "stdin    a terminal of its own, 24 rows, 80 columns" in spec.describe()
        assert dict(spec.environment)["TERM"] == "xterm-256color"
        assert not any("stdin" in line for line in (await executor.explain(TRUE)).describe())
