"""Paths that were admitted and are something else a moment later: a mount is of the admitted inode, or it is refused.

Between admission and mount the fork server is stopped, so the swap falls exactly into that moment; nothing of it can be seen from
the file system afterwards. Control, in each test: the swapped path, opened by its name on the host, gives the secret.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.errors import InvalidRequest, LaunchFailed
from stockade.executor import Job
from stockade.tools.git_toolset import register_git_tools
from stockade.tools.toolset import Toolset
from support.programs import python, shell
from support.repositories import make_repository
from support.waiting import SLOWNESS

SECRET = "host-secret"
BOUND = 20 * SLOWNESS  # seconds


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of the host that no policy here names."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "file").write_text(SECRET)
    (place / "run").write_text(f"#!/bin/sh\necho {SECRET}\n")
    (place / "run").chmod(0o755)
    return place


async def start_and_swap(executor: Executor, argv: list[str], swap: Callable[[], object], **options: object) -> Job:
    """Starts a job and swaps its paths after they have been admitted and before anything is mounted."""
    server = executor._opened().server.pid
    os.kill(server, signal.SIGSTOP)
    try:
        async with asyncio.timeout(BOUND):
            job = await executor.start(argv, **options)  # type: ignore[arg-type]
        swap()
    finally:
        os.kill(server, signal.SIGCONT)
    return job


def open_executor(policy: Policy) -> Executor:
    return Executor(policy, config=from_environment(standby=False))


def replace_by_link(path: Path, target: Path) -> None:
    path.rename(path.with_name(path.name + ".was"))
    path.symlink_to(target)


async def refusal(job: Job) -> tuple[str, str, str | None, int | None]:
    async with asyncio.timeout(BOUND):
        with pytest.raises(LaunchFailed) as caught:
            await job.result()
    return caught.value.step, caught.value.call, caught.value.path, caught.value.errno


async def test_a_workspace_that_became_a_link_is_refused(workspace: Path, outside: Path) -> None:
    async with open_executor(Policy(workspace=str(workspace))) as executor:
        job = await start_and_swap(executor, shell("cat file"), lambda: replace_by_link(workspace, outside))
        assert (workspace / "file").read_text() == SECRET
        assert await refusal(job) == ("mounts", "openat2", str(workspace), errno.ELOOP)


async def test_a_workspace_that_became_another_directory_is_refused(workspace: Path, outside: Path) -> None:
    def swap() -> None:
        workspace.rename(workspace.with_name("was"))
        outside.rename(workspace)

    async with open_executor(Policy(workspace=str(workspace))) as executor:
        job = await start_and_swap(executor, shell("cat file"), swap)
        assert (workspace / "file").read_text() == SECRET
        assert await refusal(job) == ("mounts", "openat2", str(workspace), errno.ESTALE)


@pytest.mark.parametrize("kind", ["file", "directory", "parent"])
async def test_a_read_only_path_that_became_a_link_is_refused(workspace: Path, outside: Path, kind: str) -> None:
    """As a job that may write to the workspace around it could have done, to have /etc/shadow shown to it."""
    named = workspace / "given" / "file"
    named.parent.mkdir()
    named.write_text("admitted")
    path, swapped = {
        "file": (named, named),
        "directory": (named.parent, named.parent),
        "parent": (named, named.parent),
    }[kind]
    target = Path("/etc/shadow") if kind == "file" else outside
    async with open_executor(Policy(workspace=str(workspace), ro=[str(path)])) as executor:
        job = await start_and_swap(executor, shell("cat given/file given"), lambda: replace_by_link(swapped, target))
        assert os.path.realpath(named) == str(target if kind == "file" else outside / "file")
        assert await refusal(job) == ("mounts", "openat2", str(swapped), errno.ELOOP)


async def test_a_working_directory_that_became_a_link_is_refused(workspace: Path, outside: Path) -> None:
    """A link inside leads inside: to /etc of the sandbox; even that is not what was admitted."""
    for target in (Path("/etc"), outside):
        place = workspace / target.name
        place.mkdir()
        async with open_executor(Policy(workspace=str(workspace))) as executor:
            job = await start_and_swap(executor, shell("pwd; ls"), lambda p=place, t=target: replace_by_link(p, t), cwd=place.name)
            assert os.path.realpath(place) == str(target)
            step, call, path, number = await refusal(job)
        assert (step, call, path) == ("cwd", "chdir", str(place))
        assert number == (errno.ESTALE if target == Path("/etc") else errno.ENOENT)


async def test_a_program_that_became_a_link_out_of_sight_is_not_found(workspace: Path, outside: Path) -> None:
    program = workspace / "run"
    program.write_text("#!/bin/sh\necho admitted\n")
    program.chmod(0o755)
    async with open_executor(Policy(workspace=str(workspace))) as executor:
        job = await start_and_swap(executor, ["./run"], lambda: replace_by_link(program, outside / "run"))
        assert program.read_text().endswith(f"{SECRET}\n")
        assert await refusal(job) == ("exec", "execve", f"{workspace}/./run", errno.ENOENT)


async def test_a_sandbox_that_was_built_ahead_shows_what_was_admitted(workspace: Path, outside: Path) -> None:
    """With a sandbox standing by, a swap after admission comes too late to matter: its mount is of the admitted inode."""
    (workspace / "file").write_text("admitted")
    async with Executor(Policy(workspace=str(workspace))) as executor:
        assert (await executor.run(shell("cat file"))).stdout == b"admitted"
        executor._opened().sandboxes.build_due()
        standby = executor._opened().sandboxes._next
        assert standby is not None
        async with asyncio.timeout(BOUND):
            await standby
        job = await start_and_swap(executor, shell("cat file"), lambda: replace_by_link(workspace, outside))
        assert (await job.result()).stdout == b"admitted"
        # The next request is looked up anew, and its real path is another: what was granted by name is what the host now says.
        assert os.path.realpath(workspace) == str(outside)


async def test_a_sandbox_built_ahead_is_not_used_for_a_directory_that_took_the_place_of_another(workspace: Path) -> None:
    (workspace / "file").write_text("first")
    async with Executor(Policy(workspace=str(workspace))) as executor:
        assert (await executor.run(shell("cat file"))).stdout == b"first"
        workspace.rename(workspace.with_name("was"))
        workspace.mkdir()
        (workspace / "file").write_text("second")
        assert (await executor.run(shell("cat file"))).stdout == b"second"


@pytest.mark.parametrize("field", ["ro", "rw"])
@pytest.mark.parametrize("name", ["target", "target/deeper"])
async def test_a_link_that_an_earlier_job_planted_is_not_followed(workspace: Path, outside: Path, field: str, name: str) -> None:
    """No race is needed: a path of the policy lies in the workspace, and one job makes it a link to what the next is to be granted.

    The answer was yes once: the path was followed at admission, and what it led to was pinned and mounted.
    """
    (outside / "deeper").mkdir()
    (workspace / name).mkdir(parents=True)
    policy = Policy(workspace=str(workspace), **{field: [str(workspace / name)]})
    async with Executor(Policy(workspace=str(workspace))) as other:
        assert (await other.run(shell(f"mv target was && ln -s {outside} target"))).ok
    assert os.path.realpath(workspace / name) == str(outside / name.removeprefix("target").lstrip("/"))
    async with Executor(policy) as executor:
        with pytest.raises(InvalidRequest, match="is a link in a directory that jobs can write to") as caught:
            await executor.run(shell(f"ls {outside}"))
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["ro", "rw", "workspace"])
async def test_a_link_that_a_job_of_another_policy_planted_is_not_followed(workspace: Path, outside: Path, field: str) -> None:
    """A path of one policy may lie where jobs of another one can write; the executor remembers where that is.

    Control: an executor that never ran such a job follows the link, since it cannot know.
    """
    (workspace / "data").mkdir()
    policy = Policy(**{field: str(workspace / "data") if field == "workspace" else [str(workspace / "data")]})
    async with Executor(policy) as executor:
        planting = await executor.start_with_policy(shell(f"rmdir data; ln -s {outside} data"), Policy(workspace=str(workspace)))
        assert (await planting.result()).ok
        with pytest.raises(InvalidRequest, match="is a link in a directory that jobs can write to") as caught:
            await executor.run(shell("true"))
        assert caught.value.field == field
    async with Executor(policy) as another:
        assert (await another.run(shell(f"cat {outside}/file"))).stdout == SECRET.encode()


async def test_git_tools_do_not_follow_a_link_that_a_command_planted(workspace: Path, outside: Path) -> None:
    """Control: before that, and where the host itself made such a link, they read the repository."""
    make_repository(workspace / "repo")
    make_repository(outside / "private")
    (outside / "alias").symlink_to(workspace / "repo")
    async with Executor(Policy(workspace=str(workspace))) as executor:
        register_git_tools(tools := Toolset(), executor, repo_root=workspace / "repo")
        register_git_tools(aliased := Toolset(), executor, repo_root=outside / "alias")
        for each in (tools, aliased):
            assert (await each.call("git_log", {})).get("isError") is None
        assert (await executor.run(shell(f"mv repo was; ln -s {outside}/private repo"))).ok
        refused = await tools.call("git_log", {})
    assert refused["isError"]
    assert "is a link in a directory that jobs can write to" in refused["error"]


async def test_a_link_of_the_hosts_own_is_followed(workspace: Path, outside: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(outside)
    async with Executor(Policy(workspace=str(workspace), ro=[str(tmp_path / "alias")])) as executor:
        result = await executor.run(shell(f"cat {tmp_path}/alias/file {outside}/file"))
    assert result.stdout.decode() == SECRET * 2


async def test_a_read_only_path_cannot_be_moved_away_with_the_directory_around_it(workspace: Path) -> None:
    """A hook that the policy protects was replaced once by renaming `.git`: a mount point stays, the directories above it went.

    Control: a directory that leads to nothing protected can be renamed.
    """
    for directory in ("repo/.git/hooks", "other/deep"):
        (workspace / directory).mkdir(parents=True)
    hook = workspace / "repo" / ".git" / "hooks" / "pre-commit"
    hook.write_text("good")
    script = """
tries() { "$@" 2>/dev/null && echo done || echo refused; }
tries mv repo/.git/hooks elsewhere; tries mv repo/.git was; tries mv repo was; tries rmdir repo/.git/hooks; tries mv -T other repo
tries ln -sfT /tmp repo/.git; tries python3 -c 'import ctypes, os; os._exit(ctypes.CDLL(None).renameat2(-100, b"repo", -100, b"other", 2) != 0)'
tries sh -c 'echo bad >repo/.git/hooks/pre-commit'; tries mv other/deep other/moved; tries sh -c 'echo new >repo/.git/config'
"""
    async with Executor(Policy(workspace=str(workspace), ro=[str(hook.parent)])) as executor:
        result = await executor.run(shell(script))
    assert result.stdout.split() == [b"refused"] * 8 + [b"done"] * 2
    assert hook.read_text() == "good"
    assert {path.stat().st_uid for path in workspace.rglob("*")} == {workspace.stat().st_uid}


RACER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
print("ready", flush=True)
end = time.time() + float(sys.argv[1])
while time.time() < end:
    libc.renameat2(-100, b"target", -100, b"link", 2)  # RENAME_EXCHANGE
"""


async def test_a_job_that_races_with_every_launch_never_gets_a_foreign_mount(workspace: Path, outside: Path) -> None:
    """One job swaps a directory for a link as fast as it can, while others want it as a read-only path and as working directory."""
    (workspace / "target").mkdir()
    (workspace / "target" / "file").write_text("admitted")
    (workspace / "link").symlink_to(outside)
    answers: list[bytes | str] = []
    naive = False
    async with open_executor(Policy(workspace=str(workspace), ro=[str(workspace / "target")])) as executor:
        async with Executor(Policy(workspace=str(workspace))) as other:
            racer = await other.start(python(RACER, "6"))
            async with asyncio.timeout(BOUND):
                async for _ in racer.follow():
                    break
            for turn in range(20):
                try:
                    naive = naive or (workspace / "target" / "file").read_text() == SECRET
                    options = {"cwd": "target"} if turn % 2 else {}
                    result = await executor.run(shell(f"cat {workspace}/target/file"), **options)
                    answers.append(result.stdout)
                except Exception as error:
                    answers.append(type(error).__name__)
            await racer.kill(grace=0.1)
    assert naive  # the control: a reader that follows names is fooled
    assert SECRET.encode() not in b"".join(answer for answer in answers if isinstance(answer, bytes))
    assert {answer for answer in answers if isinstance(answer, str)} <= {"LaunchFailed", "InvalidRequest"}
    assert len(answers) == 20
