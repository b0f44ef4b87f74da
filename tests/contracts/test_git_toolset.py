"""The git tools against real repositories, in real sandboxes (1A.12; NL-28 to NL-35)."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import shlex
import shutil
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.errors import InvalidRequest, NotAllowed, StockadeError
from stockade.jobs.states import JobState
from stockade.tools.git_toolset import NAMES, register_git_tools, run_git_command
from stockade.tools.schemas import CallContext
from stockade.tools.toolset import Toolset
from support.repositories import commit, git, make_repository

BOUND = 30.0  # seconds that a test waits for what is sure to come

# Writes down that it was run; in a read-only repository without a network this is all that it could do.
TELL = "sh -c 'echo RAN >&2; echo RAN; cat' tell"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("template") / "repository")


@pytest.fixture
def repository(template: Path, tmp_path: Path) -> Path:
    """A repository of the test's own."""
    return Path(shutil.copytree(template, tmp_path / "repository", symlinks=True))


@pytest.fixture
async def executor() -> AsyncIterator[Executor]:
    """One that lets nothing run but /usr/bin/true."""
    async with Executor(Policy(executables=("/usr/bin/true",))) as executor:
        yield executor


@pytest.fixture
def tools(executor: Executor, repository: Path) -> Toolset:
    return registered(executor, repository)


def registered(executor: Executor, repository: Path, **settings: Any) -> Toolset:
    toolset = Toolset()
    register_git_tools(toolset, executor, **{"repo_root": repository, **settings})
    return toolset


async def succeed(tools: Toolset, name: str, **arguments: Any) -> dict[str, Any]:
    result = await tools.call(name, arguments)
    assert result.get("ok"), result
    assert (result["state"], result["exitCode"]) == ("exited", 0)
    return result


async def refused(tools: Toolset, name: str, **arguments: Any) -> str:
    result = await tools.call(name, arguments)
    assert set(result) == {"isError", "error"}, result
    return str(result["error"])


async def whole(executor: Executor, result: dict[str, Any]) -> str:
    page = await executor.call(executor.artifacts.read_artifact, result["output"]["artifactId"])
    assert page is not None
    return page.content


@pytest.mark.case("NL-28")
async def test_the_six_tools_are_opt_in_and_once(executor: Executor, repository: Path) -> None:
    toolset = Toolset()
    assert toolset.names == ()
    first = register_git_tools(toolset, executor, repo_root=repository)
    second = register_git_tools(toolset, executor, repo_root=repository, preview_chars=10)
    assert toolset.names == NAMES
    assert second.session is first.session
    assert (await succeed(toolset, "git_log"))["preview"].endswith("…")


@pytest.mark.case("NL-28")
async def test_the_six_tools_answer(tools: Toolset, repository: Path) -> None:
    heads = {name: git(repository, "rev-parse", name) for name in ("main", "main~1", "feature")}
    short = {name: git(repository, "rev-parse", "--short", name) for name in heads}

    assert (await succeed(tools, "git_ls_files"))["preview"] == "notes\nsrc/main\n"
    assert (await succeed(tools, "git_ls_files", path="src"))["preview"] == "src/main\n"
    assert (await succeed(tools, "git_log"))["preview"] == f"{short['main']} second\n{short['main~1']} first\n"
    assert (await succeed(tools, "git_log", ref="main..feature"))["preview"] == f"{short['feature']} third\n"
    assert (await succeed(tools, "git_log", maxCount=1, since="2020-01-01"))["preview"] == f"{short['main']} second\n"
    assert (await succeed(tools, "git_log", since="2030-01-01"))["preview"] == ""
    assert (await succeed(tools, "git_log", format="name-only", path="src"))["preview"].endswith("    first\n\nsrc/main\n")
    assert "1 file changed, 1 insertion(+), 1 deletion(-)" in (await succeed(tools, "git_log", format="stat", path="src"))["preview"]
    assert "CommitDate: Fri Jan 2 03:04:05 2026 +0000" in (await succeed(tools, "git_log", format="full"))["preview"]

    shown = (await succeed(tools, "git_show", ref="HEAD", path="src/main"))["preview"]
    assert shown.startswith(f"commit {heads['main']}\n")
    assert shown.endswith("-one\n+two\n")
    assert (await succeed(tools, "git_show", ref="HEAD~1:src/main"))["preview"] == "one\n"
    assert (await succeed(tools, "git_show", ref="HEAD", nameOnly=True))["preview"].endswith("\n\ngone\nsrc/main\n")

    assert (await succeed(tools, "git_diff", base="main~1", head="main", nameOnly=True))["preview"] == "gone\nsrc/main\n"
    assert "2 files changed" in (await succeed(tools, "git_diff", base="main~1", head="main", stat=True))["preview"]
    assert "\n@@ -1 +1 @@\n-one\n+two\n" in (await succeed(tools, "git_diff", base="main~1", head="main", unified=0))["preview"]

    assert (await succeed(tools, "git_merge_base", base="main", head="feature"))["preview"] == heads["main~1"] + "\n"

    lines = (await succeed(tools, "git_blame", path="notes", ref="main", lineStart=7, lineEnd=8))["preview"].splitlines()
    assert [line.rpartition(") ")[2] for line in lines] == ["line 7", "line 8"]


async def test_what_was_changed_and_not_committed_is_seen(tools: Toolset, repository: Path) -> None:
    assert (await succeed(tools, "git_diff"))["preview"] == ""
    (repository / "src" / "main").write_text("2wo\n")
    assert (await succeed(tools, "git_diff"))["preview"].endswith("-two\n+2wo\n")
    assert (await succeed(tools, "git_diff", base="HEAD~1", path="src"))["preview"].endswith("-one\n+2wo\n")
    assert (await succeed(tools, "git_blame", path="src/main"))["preview"].startswith("00000000 (Not Committed Yet")


async def test_a_change_that_keeps_size_and_time_is_seen(tools: Toolset, repository: Path) -> None:
    """What hides from `ls -l` does not hide from git_diff."""
    git(repository, "update-index", "--refresh")
    place = repository / "src" / "main"
    before = place.stat()
    place.write_text("2wo\n")
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (await succeed(tools, "git_diff"))["preview"].endswith("-two\n+2wo\n")


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({"lineStart": 101}, range(101, 201)),
        ({"lineEnd": 150}, range(51, 151)),
        ({"lineEnd": 30}, range(1, 31)),
        ({"lineStart": 250}, range(250, 301)),
        ({"lineStart": 5, "lineEnd": 300}, range(5, 301)),
    ],
)
async def test_blame_spans_a_hundred_lines_from_the_end_that_is_given(
    tools: Toolset, executor: Executor, ends: dict[str, int], expected: range
) -> None:
    text = await whole(executor, await succeed(tools, "git_blame", path="notes", **ends))
    assert [line.rpartition(") ")[2] for line in text.splitlines()] == [f"line {number}" for number in expected]


@pytest.mark.case("NL-29")
async def test_a_preview_is_cut_and_the_whole_is_kept(executor: Executor, repository: Path) -> None:
    tools = registered(executor, repository, preview_chars=20)
    result = await succeed(tools, "git_show", ref="HEAD~1:notes")
    text = (repository / "notes").read_text()
    assert result["preview"] == text[:20] + "…"
    assert result["output"] == {
        "artifactId": result["output"]["artifactId"],
        "label": "git show (stdout)",
        "kind": "command-output",
        "sizeBytes": len(text),
    }
    assert f'retrieve_context({{"artifactId": "{result["output"]["artifactId"]}"' in result["readBackHint"]
    assert await whole(executor, result) == text
    read = await tools.call("retrieve_context", {"artifactId": result["output"]["artifactId"], "offset": 0, "limit": 50_000})
    assert (read["content"], read["hasMore"]) == (text, False)


# What is asked, and what the refusal says.
REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("git_log", {"ref": "--all"}, "ref: '--all' begins with '-', and a value is never taken for an option"),
    ("git_log", {"path": "-n1"}, "path: '-n1' begins with '-', and a value is never taken for an option"),
    ("git_log", {"since": "--all"}, "since: '--all' is not a date"),
    ("git_log", {"ref": "x" * 201}, "200 is the most"),
    ("git_show", {"ref": "-O/etc/passwd"}, "begins with '-'"),
    ("git_show", {"ref": "main; rm"}, "'main; rm' is not a valid revision"),
    ("git_show", {"ref": ""}, "not a valid revision"),
    ("git_diff", {"base": "--no-index"}, "base: '--no-index' begins with '-'"),
    ("git_diff", {"base": "main", "head": "--output=x"}, "head: '--output=x' begins with '-'"),
    ("git_diff", {"head": "main"}, "head: it was given without base"),
    ("git_diff", {"path": "a\0b"}, "NUL"),
    ("git_blame", {"path": "notes", "lineStart": 9, "lineEnd": 3}, "lineEnd: 3 is before lineStart 9"),
    ("git_blame", {"path": "notes", "lineStart": 0}, "lineStart"),
    ("git_diff", {"unified": 51}, "unified"),
    ("git_log", {"maxCount": 501}, "maxCount"),
    ("git_log", {"format": "raw"}, "format"),
    ("git_merge_base", {"base": "main"}, "head is missing"),
    ("git_merge_base", {"base": "-a", "head": "main"}, "base: '-a' begins with '-'"),
    ("git_ls_files", {"command": "rm"}, "there is no argument 'command'"),
)


@pytest.mark.case("NL-30")
async def test_values_are_never_flags(tools: Toolset) -> None:
    answers = [(name, arguments, said, await refused(tools, name, **arguments)) for name, arguments, said in REFUSED]
    assert [each for each in answers if each[2] not in each[3]] == []


@pytest.mark.case("NL-31")
async def test_no_file_is_written_by_values_that_are_put_together(tools: Toolset, repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "made"
    assert "begins with '-'" in await refused(tools, "git_diff", base="--output", head=str(target))
    assert "begins with '-'" in await refused(tools, "git_diff", base=f"--output={target}")
    assert not target.exists()
    # The control: git itself would have written it.
    git(repository, "diff", f"--output={target}", "HEAD~1", "HEAD")
    assert target.exists()


@pytest.mark.case("NL-32")
async def test_a_path_outside_is_refused(tools: Toolset, repository: Path) -> None:
    (repository / "link").symlink_to("/etc")
    names = {"git_log": {}, "git_blame": {}, "git_ls_files": {}, "git_diff": {}, "git_show": {"ref": "HEAD"}}
    paths = ("../../etc/passwd", "/etc/passwd", "src/../../other", "link", "link/passwd", "missing/../../../x")
    for path, (name, others) in itertools.product(paths, names.items()):
        error = await refused(tools, name, path=path, **others)
        assert f"outside the permitted root {str(repository)!r}" in error
        assert "name a path inside it, relative to the root" in error


@pytest.mark.case("NL-33")
async def test_a_deleted_path_can_be_asked_for(tools: Toolset) -> None:
    assert (await succeed(tools, "git_ls_files", path="gone"))["preview"] == ""
    assert (await succeed(tools, "git_log", path="never/was/there"))["preview"] == ""
    assert (await succeed(tools, "git_log", path="gone"))["preview"].endswith("first\n")
    assert (await succeed(tools, "git_show", ref="HEAD~1:gone"))["preview"] == "soon\n"


@pytest.mark.case("NL-34")
async def test_registering_git_widens_nothing(tools: Toolset, executor: Executor) -> None:
    await succeed(tools, "git_log")
    with pytest.raises(NotAllowed, match="executable 'git' is not allowed"):
        await executor.run(["git", "log"])
    assert executor.policy.executables == ("/usr/bin/true",)


@pytest.mark.case("NL-35")
async def test_without_registration_the_host_is_told_how(executor: Executor) -> None:
    with pytest.raises(StockadeError, match="register_git_tools"):
        await run_git_command(Toolset(), ["log"])


async def test_the_host_can_run_any_git_command_and_it_can_only_read(tools: Toolset, repository: Path) -> None:
    assert (await run_git_command(tools, ["rev-parse", "HEAD"]))["preview"] == git(repository, "rev-parse", "HEAD") + "\n"
    result = await run_git_command(tools, ["tag", "mine"], "a-session")
    assert not result["ok"]
    assert "Read-only file system" in result["stderrPreview"]
    assert git(repository, "tag") == ""
    with pytest.raises(InvalidRequest, match="subcommand"):
        await run_git_command(tools, ["-c", "alias.x=!id", "x"])


async def test_an_unknown_revision_is_an_answer_and_no_refusal(tools: Toolset) -> None:
    result = await tools.call("git_show", {"ref": "nowhere"})
    assert (result["ok"], result["state"], result["exitCode"]) == (False, "exited", 128)
    assert result["stderrPreview"] == "fatal: bad revision 'nowhere'\n"


async def test_no_program_of_the_repository_runs(executor: Executor, repository: Path) -> None:
    """External diffs, text conversions, filters, fsmonitor, hooks, pagers and signature checks, each in one configuration."""
    inner = repository / "inner"
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repository), "inner")
    (repository / ".gitattributes").write_text("* diff=mine filter=mine\n")
    commit(repository, "attributes and a submodule")
    git(inner, "config", "core.fsmonitor", TELL)
    (inner / "notes").write_text("changed\n")
    hook = repository / ".git" / "hooks" / "post-index-change"
    hook.write_text(f"#!/bin/sh\n{TELL}\n")
    hook.chmod(0o755)
    for key, value in {
        "core.fsmonitor": TELL,
        "core.pager": TELL,
        "pager.log": TELL,
        "pager.diff": TELL,
        "diff.external": TELL,
        "diff.mine.command": TELL,
        "diff.mine.textconv": TELL,
        "filter.mine.clean": TELL,
        "filter.mine.required": "true",
        "filter.a=b c.process": TELL,
        "gpg.program": TELL,
        "log.showSignature": "true",
        "format.pretty": "RAN %G?",
        "color.ui": "always",
        "color.diff": "always",
    }.items():
        git(repository, "config", key, value)
    (repository / "notes").write_text("changed\n")
    tools = registered(executor, repository)
    for name, arguments in [
        ("git_log", {"format": "stat"}),
        ("git_log", {"format": "full"}),
        ("git_show", {"ref": "HEAD"}),
        ("git_diff", {}),
        ("git_diff", {"base": "HEAD~2"}),
        ("git_diff", {"base": "HEAD~2", "head": "HEAD"}),
        ("git_blame", {"path": "notes"}),
        ("git_blame", {"path": "notes", "ref": "HEAD"}),
        ("git_ls_files", {}),
        ("git_merge_base", {"base": "main", "head": "feature"}),
    ]:
        result = await succeed(tools, name, **arguments)
        text = await whole(executor, result)
        assert "RAN" not in text, (name, arguments, text)
        assert "\x1b" not in text
        assert "stderrPreview" not in result, (name, arguments, result)
    # The control: without the guards, git runs them in the same sandbox.
    policy = Policy(ro=(str(repository),), env={"GIT_DIR": str(repository / ".git"), "GIT_WORK_TREE": str(repository)})
    for argv in (["git", "diff"], ["git", "diff", "--no-ext-diff"], ["git", "show"], ["git", "ls-files", "--modified"]):
        job = await executor.start_with_policy(argv, policy, cwd=str(repository))
        result = await job.result()
        assert b"RAN" in result.stdout + result.stderr, argv


async def test_a_missing_object_is_not_fetched(executor: Executor, repository: Path, tmp_path: Path) -> None:
    """A partial clone names the program that fetches what is missing."""
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--no-local", "--filter=blob:none", "--no-checkout", f"file://{repository}", "partial")
    partial = tmp_path / "partial"
    git(partial, "config", "remote.origin.uploadpack", TELL)
    result = await registered(executor, partial).call("git_show", {"ref": "HEAD:notes"})
    assert not result["ok"]
    assert "RAN" not in result["preview"] + result["stderrPreview"]
    # The control: without the guards, git runs it in the same sandbox.
    policy = Policy(ro=(str(partial),), env={"GIT_DIR": str(partial / ".git")})
    job = await executor.start_with_policy(["git", "show", "HEAD:notes"], policy, cwd=str(partial))
    assert b"RAN" in (await job.result()).stderr


async def test_a_root_that_is_a_link_works(executor: Executor, repository: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(repository)
    tools = registered(executor, link)
    assert (await succeed(tools, "git_ls_files", path=f"{link}/src"))["preview"] == "src/main\n"
    assert (await succeed(tools, "git_ls_files", path=f"{repository}/src"))["preview"] == "src/main\n"
    assert "outside the permitted root" in await refused(tools, "git_ls_files", path=str(tmp_path))


async def test_a_tracked_link_is_asked_for_by_its_own_name(tools: Toolset, repository: Path) -> None:
    (repository / "alias").symlink_to("src/main")
    (repository / "way").symlink_to("src")
    commit(repository, "links")
    assert (await succeed(tools, "git_ls_files", path="alias"))["preview"] == "alias\n"
    assert (await succeed(tools, "git_ls_files", path="way/main"))["preview"] == "src/main\n"


async def test_names_are_not_patterns_and_are_shown_as_they_are(tools: Toolset, repository: Path) -> None:
    (repository / "*").write_text("star\n")
    (repository / "grün").write_text("green\n")
    (repository / "-dash").write_text("dash\n")
    commit(repository, "names")
    assert (await succeed(tools, "git_ls_files", path="*"))["preview"] == "*\n"
    assert (await succeed(tools, "git_ls_files", path="grün"))["preview"] == "grün\n"
    assert (await succeed(tools, "git_ls_files", path="./-dash"))["preview"] == "-dash\n"
    assert (await succeed(tools, "git_ls_files", path=":!notes"))["preview"] == ""


@pytest.mark.parametrize("kind", ["worktree", "submodule", "link", "borrowing"])
async def test_a_repository_with_a_part_outside_is_refused(executor: Executor, repository: Path, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    match kind:
        case "worktree":
            git(repository, "worktree", "add", "--quiet", str(place), "feature")
        case "submodule":
            git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repository), "inner")
            place = repository / "inner"
        case "link":
            place.mkdir()
            (place / ".git").symlink_to(repository / ".git")
        case _:
            git(tmp_path, "clone", "--quiet", "--shared", str(repository), "place")
    error = await refused(registered(executor, place), "git_log")
    assert "cannot be read alone" in error
    assert "outside the permitted root" in error
    assert "main working tree" in error


async def test_a_bare_repository_has_history_and_no_files(executor: Executor, repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "bare.git")
    tools = registered(executor, tmp_path / "bare.git")
    assert (await succeed(tools, "git_log", path="src", maxCount=1))["preview"].endswith("second\n")
    assert not (await tools.call("git_diff", {}))["ok"]


async def test_a_core_worktree_elsewhere_is_not_followed(tools: Toolset, repository: Path) -> None:
    git(repository, "config", "core.worktree", "/usr")
    assert (await succeed(tools, "git_diff", nameOnly=True))["preview"] == ""


@pytest.mark.parametrize("kind", ["missing", "file", "empty", "fifo"])
async def test_what_is_no_repository_is_refused(executor: Executor, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    match kind:
        case "file":
            place.write_text("")
        case "empty":
            place.mkdir()
        case "fifo":
            place.mkdir()
            os.mkfifo(place / ".git")
    assert await refused(registered(executor, place), "git_log")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timeout_ms", 0),
        ("timeout_ms", float("nan")),
        ("timeout_ms", True),
        ("max_output_bytes", 0),
        ("preview_chars", 0),
        ("preview_chars", 4001),
        ("git_executable", ""),
        ("repo_root", ""),
    ],
)
def test_settings_are_checked_when_they_are_given(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        registered(Executor(Policy()), tmp_path, **{field: value})
    assert caught.value.field == field


async def test_a_missing_git_is_refused_with_its_name(executor: Executor, repository: Path) -> None:
    assert "'no-such-git'" in await refused(registered(executor, repository, git_executable="no-such-git"), "git_log")


@pytest.mark.skipif(os.geteuid() != 0, reason="without root jobs have the id of the repository's owner")
async def test_a_repository_that_others_cannot_read_says_so(executor: Executor, repository: Path) -> None:
    for part in (repository / ".git" / "objects", repository):
        part.chmod(0o700)
        result = await registered(executor, repository).call("git_log", {})
        assert not result["ok"]
        assert f"{str(part)!r} is closed to others" in result["error"]
        assert "chmod -R o+rX" in result["error"]


async def test_too_much_output_is_named_and_what_came_is_kept(executor: Executor, repository: Path) -> None:
    result = await registered(executor, repository, max_output_bytes=1000).call("git_show", {"ref": "HEAD~1:notes"})
    assert (result["ok"], result["state"], result["output"]["sizeBytes"]) == (False, "output-limit", 1000)
    assert result["error"]


# Ends by itself only after 15 minutes; says "ok" once it listens, below /tmp of its sandbox.
LISTENS = ["credential-cache--daemon", "/tmp/listening/socket"]


async def test_a_git_that_takes_too_long_is_ended(executor: Executor, repository: Path) -> None:
    result = await run_git_command(registered(executor, repository, timeout_ms=400), LISTENS)
    assert (result["ok"], result["state"], result["preview"]) == (False, "timeout", "ok\n")
    assert "400ms budget" in result["error"]


async def test_a_call_that_is_given_up_takes_its_git_with_it(executor: Executor, tools: Toolset) -> None:
    calling = asyncio.create_task(run_git_command(tools, LISTENS))
    async with asyncio.timeout(BOUND):
        while not (running := await executor.list(states={JobState.RUNNING})) or running[0].label != f"git {LISTENS[0]}":
            pass
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    ended = await executor.get(running[0].id)
    assert ended.outcome is not None
    assert ended.outcome.kind == "killed"


async def test_without_a_room_for_one_more_job_the_tool_says_so(repository: Path) -> None:
    async with Executor(Policy(), config=from_environment(max_jobs=1)) as executor:
        holding = await executor.start(["/usr/bin/sleep", "60"])
        assert "at most 1 may" in await refused(registered(executor, repository), "git_log")
        await holding.kill(grace=0)


async def test_a_closed_executor_is_a_refusal_too(repository: Path) -> None:
    async with Executor(Policy()) as executor:
        tools = registered(executor, repository)
    assert "the executor is not open" in await refused(tools, "git_log")


async def test_what_is_kept_for_a_toolset_does_not_keep_it(executor: Executor, repository: Path) -> None:
    tools = registered(executor, repository)
    await succeed(tools, "git_ls_files")
    gone = weakref.ref(tools)
    del tools
    gc.collect()
    assert gone() is None


async def test_the_environment_of_git_is_small_and_fixed(executor: Executor, repository: Path) -> None:
    tools = registered(executor, repository)
    result = await run_git_command(tools, ["var", "GIT_PAGER"])
    assert result["preview"] == "cat\n"
    assert shlex.split(result["command"])[:3] == ["git", "--no-pager", "--literal-pathspecs"]


async def test_the_session_of_the_call_is_recorded(tools: Toolset, executor: Executor) -> None:
    await tools.call("git_log", {}, CallContext(session_id="conversation"))
    assert [record.session for record in await executor.list()] == ["conversation"]
