"""The command line, run as a program against the kernel."""

from __future__ import annotations

import base64
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from stockade.ids import JobId
from stockade.jobs.directory import StateDirectory
from stockade.jobs.records import JobRecord
from stockade.jobs.states import JobState
from stockade.jobs.store import Store
from stockade.launcher.outcome import Exited
from stockade.tools.cli.options import RunOptions, understand
from support.cli import BOUND, COMMAND, comes_true, environment, started, stockade
from support.leaks import Leftovers
from support.programs import STUBBORN, python, shell

ALLOCATE = "x = b'a' * (200 << 20)\nimport time\ntime.sleep(20)"
SPIN = "import time\nend = time.time() + 20\nwhile time.time() < end: pass"
# Says that it has begun, then waits for a file, at most 30 s.
WAIT_FOR_GO = """
import os, time
print("begun", flush=True)
end = time.time() + 30
while not os.path.exists("go") and time.time() < end: time.sleep(0.01)
print("went" if os.path.exists("go") else "waited in vain", flush=True)
"""
# Takes SIGINT as a reason to say goodbye and end well.
POLITE = """
import os, signal, sys, time
def leave(number, frame):
    os.write(1, b"bye\\n")
    sys.exit(0)
signal.signal(signal.SIGINT, leave)
print("ready", flush=True)
end = time.time() + 30
while time.time() < end: time.sleep(0.05)
"""


def no_processes_left() -> bool:
    """True where every cgroup is gone, which none with a process in it can be."""
    return not Leftovers.now().cgroups


# Exit codes


@pytest.mark.parametrize(
    ("options", "argv", "code", "says"),
    [
        pytest.param([], shell("exit 0"), 0, "", id="success"),
        pytest.param([], shell("exit 42"), 42, "", id="the command's own"),
        pytest.param([], shell("kill -SEGV $$"), 139, "stockade: killed by SIGSEGV\n", id="a signal"),
        pytest.param(["--timeout", "0.3", "--grace", "0.1"], ["sleep", "20"], 124, "stockade: timed out after 0.3 s\n", id="wall clock"),
        pytest.param(
            ["--idle", "300ms", "--grace", "0.1"], ["sleep", "20"], 124, "stockade: timed out after 0.3 s without output\n", id="idle"
        ),
        pytest.param(["--cpu-time", "0.2"], python(SPIN), 124, "stockade: timed out after 0.2 s of CPU time\n", id="cpu time"),
        pytest.param(["--output", "1000"], shell("yes | head -c 5000"), 153, "output limit, 1000 bytes of stdout kept", id="output"),
        pytest.param(["--memory", "64M"], python(ALLOCATE), 137, "stockade: killed: out of memory, 64 MiB limit", id="memory"),
        pytest.param([], ["no-such-program"], 127, "hint: check its spelling", id="not found"),
        pytest.param([], ["/usr/share"], 126, "is not an executable file", id="not executable"),
        pytest.param(["--net", "everything"], ["true"], 125, "stockade: --net: 'everything' is not known", id="bad value"),
        pytest.param(["--memory", "1MB"], ["true"], 125, "stockade: --memory: unit 'MB' can mean 1000 or 1024", id="bad size"),
        pytest.param(["--pids", "many"], ["true"], 125, "stockade: --pids: ", id="bad number"),
        pytest.param(["--pids", "1e9"], ["true"], 125, "stockade: --pids: '1e9'", id="a number as in a program"),
        pytest.param(["--memory", "0"], ["true"], 125, "or none for no limit", id="no limit is a word"),
        pytest.param(["--env", "=x"], ["true"], 125, "stockade: --env: '=x' names no variable", id="no variable"),
        pytest.param(["--no-such-option"], ["true"], 125, "hint: `stockade run --help`", id="bad option"),
        pytest.param(["--profile", "biuld"], ["true"], 125, "did you mean 'build'?", id="bad profile"),
        pytest.param(["--require", "io.cgroup"], ["true"], 125, "requires io.cgroup", id="unfit host"),
        pytest.param(["--ro", "/no/such/place"], ["true"], 125, "hint: name a path that exists", id="missing path"),
        pytest.param(["--base64"], ["true"], 125, "--base64 goes with --json", id="pointless option"),
        pytest.param(["--env", "NOT_SET_ANYWHERE"], ["true"], 125, "'NOT_SET_ANYWHERE' is not set here", id="unset variable"),
        pytest.param(["--policy", "/no/such.toml"], ["true"], 125, "--policy: '/no/such.toml' cannot be read", id="missing policy"),
    ],
)
def test_the_exit_code_says_how_it_ended_and_one_line_says_why(options: list[str], argv: list[str], code: int, says: str) -> None:
    done = stockade("run", *options, "--", *argv)
    assert (done.returncode, says in done.stderr.decode()) == (code, True), done.stderr
    assert b"Traceback" not in done.stderr
    assert says or not done.stderr


def test_a_script_without_an_interpreter_is_there_but_cannot_be_executed(workspace: Path) -> None:
    script = workspace / "script"
    script.write_bytes(b"#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = stockade("run", "--workspace", str(workspace), "--", "./script")
    assert done.returncode == 126
    assert b"step 'exec'" in done.stderr


def test_an_unknown_key_of_a_policy_file_is_named_with_the_file(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[limits]\nmemroy = '1G'\n")
    done = stockade("run", "--policy", str(policy), "--", "true")
    assert done.returncode == 125
    assert done.stderr.decode().startswith(f"stockade: {policy}: limits.unknown limits field 'memroy': did you mean 'memory'?")


def test_without_a_command_there_is_help_and_it_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "stockade"], capture_output=True, text=True, timeout=BOUND, env=environment(), check=True
    )
    assert "Run a command, sealed off." in done.stdout
    assert not {"pydantic", "rich", "sqlite3", "stockade.executor"} & {line.split("|")[-1].strip() for line in done.stderr.splitlines()}


def test_the_help_of_run_lists_every_exit_code() -> None:
    text = stockade("run", "--help").stdout.decode()
    assert all(f"\n{code:>8}  " in text for code in ("N", "128+N", 124, 125, 126, 127, 137, 141, 153))


# What goes in and comes out


def test_both_streams_come_out_exactly_where_they_belong() -> None:
    noise = bytes(range(256)) * 1000
    done = stockade(
        "run", "--", *python("import sys; d = bytes(range(256)) * 1000; sys.stdout.buffer.write(d); sys.stderr.buffer.write(d)")
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, noise, noise)


def test_output_is_there_while_the_job_still_runs(workspace: Path) -> None:
    with started("run", "--workspace", str(workspace), "--", *python(WAIT_FOR_GO)) as running:
        assert running.line() == b"begun"
        (workspace / "go").touch()
        assert running.line() == b"went"
        assert running.end() == 0


def test_stdin_is_passed_on_request_only() -> None:
    data = bytes(range(256)) * 5000
    assert stockade("run", "--stdin", "--", "cat", given=data).stdout == data
    assert stockade("run", "--", "cat", given=data).stdout == b""


def test_more_stdin_than_can_be_held_is_refused() -> None:
    with open("/dev/zero", "rb") as zeros:
        done = subprocess.run([*COMMAND, "run", "--stdin", "--", "cat"], stdin=zeros, capture_output=True, timeout=BOUND, check=False)
    assert done.returncode == 125
    assert b"longer than 64 MiB" in done.stderr


def test_nothing_of_ours_is_visible_that_was_not_named(workspace: Path) -> None:
    (workspace / "file").write_text("seen\n")
    assert stockade("run", "--", "cat", str(workspace / "file"), cwd=workspace).returncode == 1
    assert stockade("run", "--workspace", ".", "--", "cat", "file", cwd=workspace).stdout == b"seen\n"
    assert stockade("run", "--ro", "../workspace/file", "--", "cat", str(workspace / "file"), cwd=workspace).stdout == b"seen\n"


def test_variables_are_set_or_passed_on_by_name_and_no_others_are() -> None:
    variables = {"GIVEN": "from here", "SECRET": "no"}
    done = stockade("run", "--env", "SET=a=b", "--env", "GIVEN", "--", *shell("echo $SET,$GIVEN,$SECRET"), variables=variables)
    assert done.stdout == b"a=b,from here,\n"


def test_options_after_the_program_are_the_programs_own() -> None:
    assert stockade("run", "echo", "--json", "--", "-x").stdout == b"--json -- -x\n"


def test_merged_streams_come_out_in_order(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("merge_streams = true\n")
    done = stockade("run", "--policy", str(policy), "--", *shell("echo 1; echo 2 >&2; echo 3"))
    assert (done.stdout, done.stderr) == (b"1\n2\n3\n", b"")


def test_a_closed_stdout_takes_no_harm() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "run", "--", *shell("echo out; echo err >&2")],
        capture_output=True,
        timeout=BOUND,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"err\n")


def test_json_is_the_whole_result_and_nothing_else() -> None:
    done = stockade(
        "run", "--json", "--base64", "--label", "a job", "--", *python("import sys; sys.stdout.buffer.write(b'\\xffok'); sys.exit(3)")
    )
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr, result["exit_code"]) == (3, b"", 3)
    assert result["stdout"] == {"text": "\ufffdok", "bytes": 3, "base64": base64.b64encode(b"\xffok").decode()}
    assert result["stderr"] == {"text": "", "bytes": 0, "base64": ""}
    assert (result["state"], result["label"], result["sentence"]) == ("finished", "a job", "exit 3")
    assert result["outcome"] == {"kind": "exited", "exit_code": 3, "signal": None}
    assert result["isolation"]["namespace.user"] == "own"
    assert result["usage"]["wall"] > 0


def test_json_tells_of_a_refusal_too() -> None:
    done = stockade("run", "--json", "--", "no-such-program")
    result = json.loads(done.stdout)
    assert (done.returncode, result["exit_code"], result["error"]["code"]) == (127, 127, "executable_not_found")
    assert done.stderr.startswith(b"stockade: executable 'no-such-program' was not found")


def test_the_loop_is_never_blocked(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from stockade.tools.cli.run_command import run_live

    with blockbuster_ctx("stockade"):
        code = run_live(understand(RunOptions(argv=shell("echo out; echo err >&2; kill -9 $$"))))
    assert (code, capfdbinary.readouterr()) == (137, (b"out\n", b"err\nstockade: killed by SIGKILL\n"))


# Being asked to end


def test_the_first_ctrl_c_lets_the_job_end_by_itself() -> None:
    with started("run", "--grace", "50", "--", *python(POLITE)) as running:
        assert running.line() == b"ready"
        running.signal(signal.SIGINT, group=True)
        assert running.line() == b"bye"
        assert running.end() == 130
        assert running.rest("stderr").splitlines()[-1] == b"stockade: killed: SIGINT by the caller"
    assert no_processes_left()


def test_a_stubborn_job_is_killed_after_the_grace() -> None:
    with started("run", "--grace", "0.3", "--", *python(STUBBORN)) as running:
        assert running.line() == b"ready"
        running.signal(signal.SIGINT)
        assert running.end() == 130
    assert no_processes_left()


def test_the_second_ctrl_c_kills_at_once() -> None:
    with started("run", "--grace", "1h", "--", *python(STUBBORN)) as running:
        assert running.line() == b"ready"
        running.signal(signal.SIGINT, group=True)
        assert running.line("stderr").startswith(b"stockade: interrupted, the job has 3600 s to end")
        running.signal(signal.SIGINT, group=True)
        assert running.end() == 130
    assert no_processes_left()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)])
def test_other_signals_end_the_job_too(number: int, code: int) -> None:
    with started("run", "--grace", "0.2", "--", *python(STUBBORN)) as running:
        assert running.line() == b"ready"
        running.signal(number)
        assert running.end() == code
    assert no_processes_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start_is_not_lost(number: int, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with started("run", "--state-dir", str(state), "--grace", "0.1", "--", "sleep", "50") as running:
        assert comes_true((state / "lock").exists)
        running.signal(number)
        assert running.end() == 128 + number
    assert no_processes_left()


def test_a_reader_that_goes_away_ends_the_job_quietly() -> None:
    with started("run", "--output", "1G", "--", "yes") as running:
        assert running.line() == b"y"
        assert running.process.stdout is not None
        running.process.stdout.close()
        assert running.end() == 141
        assert running.rest("stderr") == b""
    assert no_processes_left()


def test_a_reader_that_does_not_read_cannot_hold_us() -> None:
    with started(
        "run", "--output", "1M", "--", *python("import sys; sys.stdout.write('x' * 1000000); sys.stderr.write('done\\n')")
    ) as running:
        assert running.line("stderr") == b"done"
        running.signal(signal.SIGTERM)
        assert running.end() == 143


def test_output_that_cannot_be_written_is_a_failure_of_ours() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "run", "--", "echo", "x"], stdout=full, stderr=subprocess.PIPE, timeout=BOUND, env=environment(), check=False
        )
    assert (done.returncode, done.stderr) == (125, b"stockade: the output cannot be written: No space left on device\n")


# The host


def test_doctor_says_whether_this_host_is_fit() -> None:
    told, done = stockade("doctor", "--json"), stockade("doctor")
    report = json.loads(told.stdout)
    assert report["fit"] is True
    assert (told.returncode, done.returncode, done.stderr) == (0, 0, b"")
    lines = done.stdout.decode().splitlines()
    assert lines[0].split() == ["CHECK", "RESULT", "DETAIL"]
    assert lines[-1].startswith("fit: ")
    assert {line.split()[0] for line in lines[1:-2]} >= {check["name"].split()[0] for check in report["checks"]}


# The plan


def test_explain_prints_the_plan_and_starts_nothing(workspace: Path) -> None:
    arguments = [
        "explain",
        "--workspace",
        str(workspace),
        "--memory",
        "64M",
        "--timeout",
        "5",
        "--env",
        "A=b",
        "--",
        "sh",
        "-c",
        "touch ran",
    ]
    first, second = stockade(*arguments), stockade(*arguments)
    assert (first.returncode, first.stderr) == (0, b"")
    assert first.stdout == second.stdout
    lines = first.stdout.decode().splitlines()
    assert lines[:3] == ["program  /usr/bin/sh", "argv     ['sh', '-c', 'touch ran']", f"cwd      {workspace}"]
    assert {"env      A=b", "seccomp  default", "bind     /etc (from <state>/etc) (ro)"} <= set(lines)
    assert os.listdir(workspace) == []
    plan = json.loads(stockade("explain", "--json", *arguments[1:]).stdout)
    assert plan["lines"] == lines
    assert {"kind": "bind", "source": "/usr", "target": "/usr", "access": "ro", "owner": None} in plan["mounts"]


# Records that stay


def test_a_line_in_the_log_cannot_write_over_itself(tmp_path: Path) -> None:
    state = {"STOCKADE_STATE_DIR": str(tmp_path / "state")}
    assert stockade("run", "--", *shell("printf 'bad\\rgood\\r\\nend\\r'"), variables=state).returncode == 0
    job = json.loads(stockade("ps", "--json", variables=state).stdout)[0]["id"]
    assert stockade("logs", job, variables=state).stdout == b"bad\\rgood\r\nend\\r"
    assert stockade("logs", "--bytes", job, variables=state).stdout == b"bad\rgood\r\nend\r"


def test_a_table_has_room_for_text_on_the_narrowest_terminal(tmp_path: Path) -> None:
    state = {"STOCKADE_STATE_DIR": str(tmp_path / "state")}
    assert stockade("run", "--", "true", variables=state).returncode == 0
    master, slave = pty.openpty()
    with open(master, "rb", buffering=0) as shown:
        termios.tcsetwinsize(slave, (24, 2))
        with open(slave, "wb", buffering=0) as terminal:
            subprocess.run([*COMMAND, "ps"], stdout=terminal, timeout=BOUND, env=environment(**state), check=True)
        assert b"ID" in shown.read(65_536)


def test_what_a_run_leaves_in_a_state_directory_can_be_read(tmp_path: Path) -> None:
    state = {"STOCKADE_STATE_DIR": str(tmp_path / "state")}
    script = "printf 'one\\ntwo\\nth\\033[31mree\\n'; echo problem >&2; exit 3"
    assert stockade("run", "--label", "the first", "--", *shell(script), variables=state).returncode == 3
    assert stockade("run", "--", "true", variables=state).returncode == 0
    listed = json.loads(stockade("ps", "--json", variables=state).stdout)
    assert [(job["label"], job["sentence"]) for job in listed] == [("true", "exit 0"), ("the first", "exit 3")]
    job = listed[1]["id"]
    table = stockade("ps", variables=state).stdout.decode().splitlines()
    assert table[0].split() == ["ID", "OUTCOME", "AGE", "DURATION", "LABEL"]
    assert table[2].startswith(f"{job}  exit 3")
    assert table[2].endswith("  the first")
    shown = stockade("show", job, variables=state).stdout.decode().splitlines()
    assert {f"id              {job}", "ended           exit 3", "stdout          19 bytes", "stderr          8 bytes"} <= set(shown)
    assert json.loads(stockade("show", "--json", job, variables=state).stdout)["outcome"]["exit_code"] == 3
    assert stockade("logs", job, variables=state).stdout == b"one\ntwo\nth\\x1b[31mree\n"
    assert stockade("logs", "--bytes", "--lines", "2", job, variables=state).stdout == b"two\nth\x1b[31mree\n"
    assert stockade("logs", "--lines", "0", job, variables=state).stdout == b""
    assert stockade("logs", "--stderr", "-f", job, variables=state).stdout == b"problem\n"
    killed = stockade("kill", job, variables=state)
    assert (killed.returncode, killed.stderr) == (0, f"stockade: job {job} has ended already: exit 3\n".encode())
    only_said = stockade("purge", "--keep-count", "1", "--dry-run", variables=state)
    assert only_said.stdout == f"{job}\n".encode()
    assert stockade("purge", "--keep-count", "1", variables=state).stdout == f"{job}\n".encode()
    assert [job["label"] for job in json.loads(stockade("ps", "--json", variables=state).stdout)] == ["true"]
    gone = stockade("logs", job, variables=state)
    assert (gone.returncode, gone.stderr.splitlines()[0]) == (125, f"stockade: unknown job '{job}'".encode())
    assert stockade("purge", "--older-than", "1d", variables=state).stdout == b""


def test_a_running_job_is_seen_from_outside(tmp_path: Path, workspace: Path) -> None:
    state = str(tmp_path / "state")
    with started("run", "--state-dir", state, "--workspace", str(workspace), "--", *python(WAIT_FOR_GO)) as running:
        assert running.line() == b"begun"
        assert comes_true(lambda: b'"sentence": "running"' in stockade("ps", "--json", "--state-dir", state).stdout)
        [job] = json.loads(stockade("ps", "--running", "--json", "--state-dir", state).stdout)
        with started("logs", "-f", job["id"], "--state-dir", state) as following:
            assert following.line() == b"begun"
            purged = stockade("purge", "--keep-count", "0", "--state-dir", state)
            assert purged.returncode == 125
            assert f"in use by the executor in process {running.process.pid}".encode() in purged.stderr
            assert stockade("run", "--state-dir", state, "--", "true").returncode == 125
            (workspace / "go").touch()
            assert following.line() == b"went"
            assert following.end() == 0
        assert running.end() == 0


def test_a_running_job_is_ended_from_outside(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    with started("run", "--state-dir", state, "--grace", "0.2", "--", *python(STUBBORN)) as running:
        assert running.line() == b"ready"
        assert comes_true(lambda: b'"state": "running"' in stockade("ps", "--json", "--state-dir", state).stdout)
        [job] = json.loads(stockade("ps", "--json", "--state-dir", state).stdout)
        killed = stockade("kill", job["id"], "--signal", "2", "--state-dir", state)
        assert (killed.returncode, killed.stderr) == (
            0,
            f"stockade: job {job['id']} killed: SIGINT through the state directory\n".encode(),
        )
        unknown = stockade("kill", "nosuchjob", "--state-dir", state)
        assert (unknown.returncode, b"unknown job" in unknown.stderr) == (125, True)
        assert running.end() == 137


def test_a_job_whose_executor_was_killed_is_lost_and_not_running(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    with started("run", "--state-dir", state, "--", *python(STUBBORN)) as running:
        assert running.line() == b"ready"
        assert comes_true(lambda: b'"state": "running"' in stockade("ps", "--json", "--state-dir", state).stdout)
        running.process.kill()
        assert running.end() == -signal.SIGKILL
    [job] = json.loads(stockade("ps", "--json", "--state-dir", state).stdout)
    assert (job["state"], job["sentence"]) == ("running", "lost: its executor died while it was running")
    followed = stockade("logs", "-f", job["id"], "--state-dir", state)
    assert (followed.returncode, followed.stdout) == (0, b"ready\n")
    assert followed.stderr == b"stockade: lost: its executor died while it was running\n"
    assert json.loads(stockade("ps", "--running", "--json", "--state-dir", state).stdout) == []
    # The next executor there clears up after it.
    assert stockade("run", "--state-dir", state, "--", "true").returncode == 0
    assert no_processes_left()
    assert b"lost: the executor died with the job last recorded as running" in stockade("show", job["id"], "--state-dir", state).stdout


def test_a_reader_of_logs_that_goes_away_is_noticed(tmp_path: Path, workspace: Path) -> None:
    state = str(tmp_path / "state")
    with started("run", "--state-dir", state, "--workspace", str(workspace), "--", *python(WAIT_FOR_GO)) as running:
        assert running.line() == b"begun"
        [job] = json.loads(stockade("ps", "--json", "--state-dir", state).stdout)
        with started("logs", "-f", job["id"], "--state-dir", state) as following:
            assert following.line() == b"begun"
            assert following.process.stdout is not None
            following.process.stdout.close()
            assert following.end() in (0, 141)
        (workspace / "go").touch()
        assert running.end() == 0


@pytest.mark.parametrize("arguments", [["ps"], ["show", "x"], ["logs", "x"], ["kill", "x"], ["purge", "--keep-count", "0"]])
def test_a_state_directory_must_be_named_and_be_one(arguments: list[str], tmp_path: Path) -> None:
    unnamed = stockade(*arguments)
    assert (unnamed.returncode, unnamed.stderr.splitlines()[0]) == (125, b"stockade: no state directory is named")
    wrong = stockade(*arguments, "--state-dir", str(tmp_path))
    assert wrong.returncode == 125
    assert b"is no state directory of Stockade" in wrong.stderr
    assert os.listdir(tmp_path) == []


def test_purge_leaves_what_nobody_has_read_unless_it_is_told_to(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    with StateDirectory.open(state) as held, Store.open(held.layout.database) as store:
        store.submit(
            JobRecord(
                id=JobId("unread"),
                instance=held.instance,
                argv=("true",),
                state=JobState.FINISHED,
                outcome=Exited(0),
                created_at=1.0,
                ended_at=2.0,
            )
        ).result(BOUND)
    assert stockade("run", "--state-dir", state, "--", "true").returncode == 0
    purged = stockade("purge", "--state-dir", state, "--keep-count", "0")
    assert (purged.returncode, len(purged.stdout.split()), b"unread" in purged.stdout) == (0, 1, False)
    assert stockade("purge", "--unread", "--state-dir", state, "--keep-count", "0").stdout == b"unread\n"


def test_explain_takes_the_name_of_its_place_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "a(b[c+"
    place.mkdir(mode=0o755)
    done = stockade("explain", "--", "true", variables={"TMPDIR": str(place)})
    assert done.returncode == 0, done.stderr
    assert b"<state>/etc" in done.stdout
    assert b"a(b" not in done.stdout


def test_purge_wants_to_be_told_what_to_remove(tmp_path: Path) -> None:
    done = stockade("purge", "--state-dir", str(tmp_path))
    assert (done.returncode, done.stderr.splitlines()[0]) == (125, b"stockade: nothing says what to remove")


# What holds


def test_a_limit_that_nothing_enforces_is_named_once_where_it_was_asked_for() -> None:
    """Control: the plan says the same, and where nobody asked for such a limit nothing is said."""
    plan = json.loads(stockade("explain", "--json", "--cpus", "0.5", "--", "true").stdout)
    mechanism = dict(plan["mechanisms"])["cpus"]
    said = stockade("run", "--cpus", "0.5", "--", "echo", "hi")
    assert (said.returncode, said.stdout) == (0, b"hi\n")
    if mechanism == "cpu.none":
        assert said.stderr == (
            b"stockade: not enforced on this host: cpus (`stockade doctor` says why; --require cpu.cgroup refuses instead)\n"
        )
        assert stockade("run", "--cpus", "0.5", "--require", "cpu.cgroup", "--", "true").returncode == 125
    else:
        assert said.stderr == b""
    assert stockade("run", "--", "echo", "hi").stderr == b""
    assert stockade("run", "--json", "--cpus", "0.5", "--", "true").stderr == b""
