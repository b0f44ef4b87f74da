"""`stockade run -i` and `-t`: what goes in from a pipe and from a terminal, and that the terminal is given back as it was."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from support.cli import BOUND, COMMAND, comes_true, environment, stockade
from support.console import sitting
from support.leaks import Leftovers
from support.programs import STUBBORN, python, shell

BASH = ["--env", "PS1=ready> ", "--", "bash", "--norc", "--noediting", "-i"]


def no_processes_left() -> bool:
    return not Leftovers.now().cgroups


# From a pipe


def test_standard_input_is_passed_on_as_it_comes() -> None:
    command = [*COMMAND, "run", "-i", "--", *python("while line := input(): print(line.upper(), flush=True)")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for word in (b"one", b"two"):
            process.stdin.write(word + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == word.upper() + b"\n"
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(BOUND) == 0


def test_the_end_of_ours_is_the_end_of_the_job_s() -> None:
    data = os.urandom(3 << 20)
    done = stockade("run", "-i", "--", "cat", given=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")
    done = stockade("run", "--interactive", "--json", "--", "wc", "-c", given=b"12345")
    assert b'"text": "5\\n"' in done.stdout


def test_a_job_that_has_read_enough_ends_although_more_would_come() -> None:
    with subprocess.Popen(
        [*COMMAND, "run", "-i", "--", "head", "-n", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert process.wait(BOUND) == 0  # and our end is still open
        assert process.stdout is not None
        assert process.stdout.read() == b"first\n"


def test_what_comes_after_a_job_is_left_to_the_next_reader() -> None:
    script = 'set -e; "$@" run -i -- true; cat'
    done = subprocess.Popen(["sh", "-c", script, "sh", *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    with done as process:
        assert process.stdin is not None
        assert comes_true(
            lambda: "cat" in subprocess.run(["ps", "-o", "comm=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
        )
        out, _ = process.communicate(b"for the next one", timeout=BOUND)
        assert out == b"for the next one"


def test_an_input_that_cannot_be_read_is_told_and_ends() -> None:
    with open(os.devnull, "wb") as unreadable:
        done = subprocess.run([*COMMAND, "run", "-i", "--", "cat"], stdin=unreadable, capture_output=True, timeout=BOUND, env=environment())
    assert (done.returncode, done.stderr) == (0, b"stockade: standard input cannot be read: Bad file descriptor\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tty"], b"--tty: our standard input is not a terminal"),
        (["-it"], b"hint: run it from a terminal, or pass input on with --interactive"),
        (["--tty", "--json"], b"--tty does not go with --json"),
        (["--stdin", "-i"], b"--stdin does not go with --interactive or --tty"),
        (["--stdin", "-t"], b"--stdin does not go with --interactive or --tty"),
    ],
)
def test_what_does_not_go_together_is_refused(options: list[str], says: bytes) -> None:
    done = stockade("run", *options, "--", "true")
    assert done.returncode == 125
    assert says in done.stderr


# On a terminal


def test_a_shell_on_our_terminal() -> None:
    with sitting("run", "-t", *BASH, rows=30, columns=90) as seat:
        before = seat.settings
        seat.expect(b"ready> ")
        assert seat.is_raw
        seat.type(b"tty; stty size; echo $TERM\r")
        seat.expect(b"/dev/pts/0\r\n30 90\r\nxterm\r\n")
        seat.type(b"cat\r")
        seat.expect(b"cat\r\n")
        seat.type(b"hello\r")
        seat.expect(b"hello\r\nhello\r\n")  # it is in the foreground
        seat.type(b"\x03")  # is the job's, not ours
        seat.expect(b"^C")
        seat.expect(b"ready> ")
        seat.resize(40, 100)
        seat.type(b"while [ \"$(stty size)\" != '40 100' ]; do sleep 0.05; done; echo re''sized\r")
        seat.expect(b"resized\r\n")
        seat.type(b"exit 7\r")
        assert seat.end() == 7
        assert seat.settings == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_ends_the_job_and_gives_the_terminal_back(number: signal.Signals) -> None:
    with sitting("run", "-t", "--grace", "0.2", "--", *python(STUBBORN)) as seat:
        before = seat.settings
        seat.expect(b"ready")
        assert seat.is_raw
        seat.process.send_signal(number)
        assert seat.end() == 128 + number
        assert seat.settings == before
    assert comes_true(no_processes_left)


@pytest.mark.parametrize(
    ("options", "argv", "code", "says"),
    [
        ([], ["no-such-program"], 127, b"hint: check its spelling"),
        ([], shell("stty -a; kill -SEGV $$"), 139, b"stockade: killed by SIGSEGV\r\n"),
        (["--timeout", "0.5", "--grace", "0.1"], ["sleep", "60"], 124, b"stockade: timed out after 0.5 s\r\n"),
        (["--output", "1000"], ["yes"], 153, b"output limit, 1000 bytes of stdout kept\r\n"),
        (["--ro", "/no/such/place"], ["true"], 125, b"name a path that exists"),
    ],
)
def test_however_it_ends_the_terminal_is_given_back_before_the_last_words(
    options: list[str], argv: list[str], code: int, says: bytes
) -> None:
    with sitting("run", "-t", *options, "--", *argv) as seat:
        before = seat.settings
        assert seat.end() == code
        assert seat.settings == before
        seat.expect(says)


def test_after_a_stop_the_terminal_is_lent_again() -> None:
    with sitting("run", "-t", *BASH) as seat:
        before = seat.settings
        seat.expect(b"ready> ")
        seat.process.send_signal(signal.SIGSTOP)
        assert comes_true(lambda: os.waitid(os.P_PID, seat.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None)
        seat.settings = before  # what a shell does when a job has stopped
        seat.process.send_signal(signal.SIGCONT)
        assert comes_true(lambda: seat.is_raw)
        seat.type(b"exit\r")
        assert seat.end() == 0
        assert seat.settings == before


def test_a_terminal_that_is_closed_ends_all_of_it() -> None:
    with sitting("run", "-t", "--grace", "0.2", "--", *python(STUBBORN)) as seat:
        seat.expect(b"ready")
        seat.hang_up()
        assert seat.end() == 129
    assert comes_true(no_processes_left)
