"""Public bug reports about broken isolation: each program of tests/corpus runs as its header says, and both sides judge it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from stockade import Executor, Policy
from stockade.bank.taking import Harvest, take_files
from stockade.bank.trees import remove_tree
from support import supervisor
from support.corpus import observed, place, verdict
from support.programs import PYTHON
from support.waiting import SLOWNESS

BOUND = 60 * SLOWNESS  # seconds


@pytest.mark.case("d01")
async def test_links_in_a_workspace_are_followed_by_nobody_outside(workspace: Path, tmp_path: Path) -> None:
    """Control: the same name opened in the usual way gives the token, so the links do lead there."""
    token = secrets.token_hex(16)
    canary = tmp_path / "canary"
    canary.write_text(token)
    canary.chmod(0o640)
    kept = {path: os.stat(path) for path in (str(canary), "/etc/passwd")}
    policy = Policy(workspace=str(workspace), env={"CANARY": str(canary)})
    async with Executor(policy) as executor:
        result = await executor.run([place("d01", workspace)])
    assert verdict(result.stdout) == "INFO links made; judge the host's answers"
    assert token.encode() not in result.stdout + result.stderr
    assert (workspace / "result.json").read_text() == token
    harvest, stored = await asyncio.to_thread(_taken, workspace, tmp_path / "stored")
    assert {taken.path for taken in harvest.taken} == {"d01-symlink-artifacts.py"}
    assert all(refusal.reason == "it is a symbolic link" for refusal in harvest.refused)
    assert {refusal.path for refusal in harvest.refused} >= {"result.json", "d01/out.txt", "d01/etc", "d01/up", "d01/dirlink"}
    assert token not in stored
    asked_for = ["result.json", "d01/out.txt", "d01/dirlink/canary", "d01/etc/passwd"]
    asked, stored = await asyncio.to_thread(_taken, workspace, tmp_path / "again", asked_for)
    assert (asked.taken, len(asked.refused), stored) == ((), 4, "")
    await asyncio.to_thread(_remove, workspace)
    assert not workspace.exists()
    for path, before in kept.items():
        after = os.stat(path)
        assert (after.st_mode, after.st_uid, after.st_size) == (before.st_mode, before.st_uid, before.st_size)


def _remove(workspace: Path) -> None:
    parent = os.open(workspace.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        remove_tree(parent, workspace.name)
    finally:
        os.close(parent)


def _taken(workspace: Path, stored: Path, paths: list[str] | None = None) -> tuple[Harvest, str]:
    """What the bank takes out of a workspace, and the text of all of it."""
    stored.mkdir()

    def target(_: str) -> tuple[str, int]:
        name = str(len(os.listdir(stored)))
        return name, os.open(stored / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)

    root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        harvest = take_files(root, paths, target)
    finally:
        os.close(root)
    return harvest, "".join(path.read_text("utf-8", "replace") for path in sorted(stored.iterdir()))


def _careless_supervisor(workspace: Path, tmp_path: Path, case: str, count: int, **variables: str) -> tuple[list[str], Path]:
    token_file = tmp_path / "token"
    token_file.write_text("sbxtoken-" + secrets.token_hex(16))
    state = tmp_path / "state"
    program = [sys.executable, supervisor.__file__, str(workspace), str(state), str(token_file), str(count), place(case, workspace)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = subprocess.run([*program, *variables.values()], capture_output=True, timeout=BOUND, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    outputs: list[str] = json.loads(done.stdout)
    assert len(outputs) == count
    return outputs, state


@pytest.mark.case("d03")
def test_no_descriptor_of_a_careless_supervisor_reaches_any_of_twenty_jobs(workspace: Path, tmp_path: Path) -> None:
    """Control: a program that the supervisor's own interpreter starts in the usual way does inherit all three."""
    outputs, _ = _careless_supervisor(workspace, tmp_path, "d03", 20)
    assert {verdict(output.encode()) for output in outputs} == {"PASS"}
    assert {observed(output.encode(), "fd 0") for output in outputs} == {"char /dev/null"}
    assert {observed(output.encode(), "fd 1").split(":")[0] for output in outputs} == {"pipe pipe"}
    control = (
        "import os, subprocess, sys; from support.supervisor import leak; pair = leak(sys.argv[1])\n"
        "print(subprocess.run([sys.argv[2]], close_fds=False, capture_output=True, text=True).stdout)"
    )
    arguments = [str(tmp_path / "token"), str(next(workspace.glob("d03-*")))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", control, *arguments], capture_output=True, timeout=BOUND, env=environment, check=True)
    assert verdict(done.stdout).startswith("FAIL inherited descriptors [3, 77, 2048")


@pytest.mark.case("d04")
@pytest.mark.parametrize("seccomp", ["default", "debug"])
async def test_no_program_file_of_ours_can_be_opened_for_writing(workspace: Path, seccomp: str) -> None:
    """Control: root outside can open the interpreter's file for writing, so what refuses is the sandbox, not the file."""
    binaries = [os.path.realpath(path) for path in (PYTHON, sys.executable)]
    before = [_digest(path) for path in binaries]
    async with Executor(Policy(workspace=str(workspace), seccomp=seccomp)) as executor:
        result = await executor.run([place("d04", workspace)])
    assert verdict(result.stdout).startswith("PASS")
    assert observed(result.stdout, "self exe:") == "EACCES"
    assert [_digest(path) for path in binaries] == before
    if os.geteuid() == 0:
        assert os.access(binaries[0], os.W_OK)


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.case("d05")
@pytest.mark.parametrize("seccomp", ["default", "debug"])
async def test_jobs_that_run_at_once_see_none_of_the_others(workspace: Path, seccomp: str) -> None:
    """With `debug` the filter lets ptrace and process_vm_readv through, and what holds is that init cannot be inspected."""
    async with Executor(Policy(workspace=str(workspace), seccomp=seccomp)) as executor:
        sleeper = await executor.start(["/usr/bin/sleep", "60"])
        program = place("d05", workspace)
        results = await asyncio.gather(*(executor.run([program]) for _ in range(2)))
        await sleeper.kill(grace=0.1)
    assert [verdict(result.stdout) for result in results] == ["PASS", "PASS"]
    assert {observed(result.stdout, "pids in /proc:").split()[0] for result in results} == {"1"}
    assert {observed(result.stdout, "ptrace(SEIZE,1) =") for result in results} == {"-1 EPERM"}
    assert {observed(result.stdout, "process_vm_readv(1) =") for result in results} == {"-1 EPERM"}


@pytest.mark.case("d06")
def test_no_secret_of_the_supervisor_reaches_a_job_or_the_record(workspace: Path, tmp_path: Path) -> None:
    """Control: the same program started by the supervisor's own environment finds the token in it."""
    names = ("SBX_CANARY_SECRET", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "OPENAI_API_KEY")
    secret = {name: f"sbxtoken-{secrets.token_hex(8)}" for name in names}
    (output,), state = _careless_supervisor(workspace, tmp_path, "d06", 1, **secret)
    assert verdict(output.encode()) == "PASS"
    assert observed(output.encode(), "doubtful names:") == "[]"
    kept = b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())
    assert b"VERDICT PASS" in kept
    assert b"sbxtoken-" not in kept.replace((next(workspace.glob("d06-*"))).read_bytes(), b"")
    control = subprocess.run(
        [str(next(workspace.glob("d06-*")))], capture_output=True, timeout=BOUND, env={**os.environ, **secret}, check=True
    )
    assert "own environment" in verdict(control.stdout)


@contextmanager
def _listeners() -> Iterator[tuple[int, list[str], list[str]]]:
    """TCP and UDP listeners on the host's loopback and on every address of it: (port, addresses, what they saw)."""
    seen: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    sockets: list[socket.socket] = []
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            listener = socket.socket(family, kind)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.settimeout(0.1)
            if kind == socket.SOCK_STREAM:
                listener.listen()
            sockets.append(listener)
    stop = threading.Event()

    def watch(listener: socket.socket) -> None:
        while not stop.is_set():
            try:
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()[0].close()
                else:
                    listener.recv(100)
                seen.append(str(listener.type))
            except TimeoutError:
                continue

    threads = [threading.Thread(target=watch, args=(listener,)) for listener in sockets]
    for thread in threads:
        thread.start()
    wanted = (socket.AF_INET, socket.AF_INET6)
    found = [each.address.split("%")[0] for rows in psutil.net_if_addrs().values() for each in rows if each.family in wanted]
    try:
        yield port, found, seen
    finally:
        stop.set()
        for thread in threads:
            thread.join(BOUND)
        for listener in sockets:
            listener.close()


@pytest.mark.case("d08")
@pytest.mark.parametrize("network", ["none", "loopback"])
async def test_no_service_of_the_host_or_beyond_can_be_reached(workspace: Path, network: str) -> None:
    """Control: from outside the listeners are reached, and see it."""
    with _listeners() as (port, addresses, seen):
        variables = {"PORT": str(port), "HOSTIPS": ",".join(addresses)}
        async with Executor(Policy(workspace=str(workspace), network=network, env=variables)) as executor:
            result = await executor.run([place("d08", workspace)])
        assert verdict(result.stdout) == "PASS"
        assert observed(result.stdout, "interfaces:") == "['lo']"
        assert seen == []
        await asyncio.to_thread(lambda: socket.create_connection(("127.0.0.1", port), 5).close())
        deadline = asyncio.get_running_loop().time() + 10
        while not seen and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        assert seen


@pytest.mark.case("d09")
@pytest.mark.parametrize("seccomp", ["strict", "default", "debug"])
async def test_what_is_refused_natively_is_refused_by_the_other_tables(workspace: Path, seccomp: str) -> None:
    """The control, int 0x80 that works outside, stands in test_ways_into_the_kernel."""
    async with Executor(Policy(workspace=str(workspace), seccomp=seccomp)) as executor:
        result = await executor.run([place("d09", workspace)])
    assert verdict(result.stdout) in ("PASS", "SKIP not x86-64")
    if verdict(result.stdout) == "PASS":
        assert observed(result.stdout, "getpid") == "{'native': 'OK', 'x32': 'ENOSYS', 'int80': 'SIGSYS'}"


@pytest.mark.case("d12")
@pytest.mark.parametrize("seccomp", ["default", "debug"])
async def test_nested_namespaces_are_refused_with_an_error_that_programs_understand(workspace: Path, seccomp: str) -> None:
    """The control, unshare that works outside, stands in test_ways_into_the_kernel."""
    with open("/proc/self/mountinfo") as table:
        before = table.read()
    async with Executor(Policy(workspace=str(workspace), seccomp=seccomp)) as executor:
        result = await executor.run([place("d12", workspace)])
    assert verdict(result.stdout) == "PASS refused"
    assert observed(result.stdout, "nested namespaces refused:") == "EPERM"
    with open("/proc/self/mountinfo") as table:
        assert table.read() == before


@pytest.mark.case("d13")
async def test_controls_of_the_kernel_cannot_be_opened(workspace: Path) -> None:
    """The control, the same files opened by root outside, stands in test_kernel_files."""

    def state() -> list[str]:
        return [Path(path).read_text() for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname")]

    before = state()
    async with Executor(Policy(workspace=str(workspace))) as executor:
        result = await executor.run([place("d13", workspace)])
    assert verdict(result.stdout) == "PASS"
    assert observed(result.stdout, "write /proc/sys/kernel/core_pattern") == "EACCES"
    assert observed(result.stdout, "syslog(READ_ALL):") == "EPERM"
    assert state() == before


@pytest.mark.case("d14")
async def test_no_cgroup_file_can_be_reached_and_no_host_cgroup_is_named(workspace: Path) -> None:
    async with Executor(Policy(workspace=str(workspace))) as executor:
        result = await executor.run([place("d14", workspace)])
    assert verdict(result.stdout) == "PASS"
    rows = observed(result.stdout, "/proc/self/cgroup").split(" | ")
    assert {row.split(":", 2)[2] for row in rows} == {"/"}


@pytest.mark.case("d16")
async def test_jobs_find_nothing_that_other_jobs_left(workspace: Path) -> None:
    """Three in sequence and two at once; their own marks are made each time, so there is something to be found."""
    before = {path: sorted(os.listdir(path)) for path in ("/dev/shm",)}
    async with Executor(Policy(workspace=str(workspace))) as executor:
        program = place("d16", workspace)
        results = [await executor.run([program]) for _ in range(3)]
        results += await asyncio.gather(*(executor.run([program]) for _ in range(2)))
    assert [verdict(result.stdout) for result in results] == ["PASS"] * 5
    made = "['/tmp/.sbx-d16', '/var/tmp/.sbx-d16', '/dev/shm/.sbx-d16', '/home/job/.sbx-d16', 'sysv shm', 'sysv sem', 'sysv msg']"
    assert {observed(result.stdout, "made:") for result in results} == {made}
    assert before == {path: sorted(os.listdir(path)) for path in before}
