"""Public bug reports about sandboxes in which ordinary programs break: each program of tests/corpus must find a whole machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from stockade import Executor, Policy
from support.corpus import observed, place, verdict
from support.waiting import SLOWNESS

GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "host",
    "GIT_AUTHOR_EMAIL": "host@example.com",
    "GIT_COMMITTER_NAME": "host",
    "GIT_COMMITTER_EMAIL": "host@example.com",
}


async def run(policy: Policy, workspace: Path, case: str, copies: int = 1, stdin: bytes | None = None) -> list[bytes]:
    """What each of several copies of a case wrote, all of them run at once."""
    async with Executor(policy.replace(workspace=str(workspace))) as executor:
        program = place(case, workspace)
        results = await asyncio.gather(*(executor.run([program], stdin=stdin) for _ in range(copies)))
    assert [result.exit_code for result in results] == [0] * copies, results[0].stderr[-1000:]
    return [result.stdout for result in results]


@pytest.mark.case("e01")
async def test_the_devices_that_programs_expect_are_there(workspace: Path) -> None:
    (output,) = await run(Policy(), workspace, "e01")
    assert verdict(output) == "PASS"


@pytest.mark.case("e02")
async def test_the_job_has_a_name_a_home_and_a_path(workspace: Path) -> None:
    (output,) = await run(Policy(), workspace, "e02")
    assert verdict(output) == "PASS"
    assert observed(output, "getpwuid:") == "'job'"
    async with Executor(Policy()) as executor:
        accounts = await executor.run(["/usr/bin/cat", "/etc/passwd"])
    assert [line.split(b":")[0] for line in accounts.stdout.splitlines()] == [b"root", b"job", b"nobody"]


@pytest.mark.case("e04")
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
async def test_git_works_in_a_repository_of_the_host(workspace: Path) -> None:
    repository = workspace / "hostrepo"
    repository.mkdir()
    environment = {**os.environ, **GIT}

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments], env=environment, capture_output=True, text=True, timeout=60 * SLOWNESS, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    (repository / "file").write_text("content\n")
    git("add", "file")
    git("commit", "-qm", "one")
    (output,) = await run(Policy(), workspace, "e04")
    assert verdict(output) == "PASS"
    assert observed(output, "owner of hostrepo").startswith("1000:1000, own uid 1000")
    assert git("status", "--porcelain") == ""
    assert git("log", "--format=%s") == "from-job\none"
    owner = (workspace.stat().st_uid, workspace.stat().st_gid)
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in workspace.rglob("*")} == {owner}


@pytest.mark.case("e05")
async def test_servers_and_clients_of_one_job_meet_and_two_jobs_may_use_one_port(workspace: Path) -> None:
    outputs = await run(Policy(), workspace, "e05", copies=2)
    assert [verdict(output) for output in outputs] == ["PASS", "PASS"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 18432))  # nobody has it on the host


@pytest.mark.case("e06")
@pytest.mark.measures_time
async def test_multiprocessing_has_its_semaphores_and_shared_memory(workspace: Path) -> None:
    before = sorted(os.listdir("/dev/shm"))
    outputs = await run(Policy(), workspace, "e06", copies=2)
    assert [verdict(output) for output in outputs] == ["PASS", "PASS"]
    assert sorted(os.listdir("/dev/shm")) == before


@pytest.mark.case("e07")
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(Policy(seccomp="debug"), id="debug"),
        # LeakSanitizer stops its own process by ptrace, which only `debug` lets it; without it the sanitizer works.
        pytest.param(Policy(env={"ASAN_OPTIONS": "detect_leaks=0"}), id="default, leak check off"),
    ],
)
async def test_address_space_may_be_reserved_without_end(workspace: Path, policy: Policy) -> None:
    """With node, java and gcc where the host has them; the program itself passes over those that are missing."""
    async with Executor(policy.replace(workspace=str(workspace))) as executor:
        result = await executor.run([place("e07", workspace)])
    assert verdict(result.stdout) == "PASS"
    assert observed(result.stdout, "RLIMIT_AS") == observed(result.stdout, "RLIMIT_DATA") == "(-1, -1)"
    for tool, line in (("node", "node wasm ok"), ("java", "java ok"), ("gcc", "address sanitizer ok")):
        if shutil.which(tool, path="/usr/bin"):
            assert observed(result.stdout, line) is not None
    peak = result.usage.peak_memory
    assert peak is None or peak < 512 << 20


@pytest.mark.case("e10")
@pytest.mark.parametrize("stdin", [None, b"abc\n"], ids=["no input", "input"])
async def test_programs_that_want_a_terminal_end_instead_of_waiting(workspace: Path, stdin: bytes | None) -> None:
    (output,) = await run(Policy(), workspace, "e10", stdin=stdin)
    assert verdict(output) == "PASS"
    assert observed(output, "cat") == ("rc=0" if stdin is None else "rc=0 abc|")


@pytest.mark.case("e11")
async def test_the_signal_state_of_a_job_is_that_of_a_login_shell(workspace: Path) -> None:
    """Signals 32 and 33 were ignored once: os.posix_spawn cannot reset the C library's own signals, and glibc ignores them."""
    (output,) = await run(Policy(), workspace, "e11")
    assert verdict(output) == "PASS"
    assert observed(output, "SigIgn=").split()[:2] == ["0000000000000000", "SigBlk=0000000000000000"]


@pytest.mark.case("e13")
@pytest.mark.measures_time
@pytest.mark.parametrize("seccomp", ["default", "debug"])
async def test_tools_that_need_power_work_or_end_at_once_with_a_message(workspace: Path, seccomp: str) -> None:
    (output,) = await run(Policy(seccomp=seccomp), workspace, "e13")
    assert verdict(output) == "PASS"
    for kind, answer in (
        ("icmp", "EACCES"),
        ("raw", "EPERM"),
        ("packet", "EAFNOSUPPORT"),
        ("vsock", "EAFNOSUPPORT"),
        ("alg", "EAFNOSUPPORT"),
    ):
        assert observed(output, kind).split()[-1] == answer
    if shutil.which("strace", path="/usr/bin"):
        expected = "rc=0" if seccomp == "debug" else "rc=1"
        assert observed(output, "strace own child").split()[0] == expected
