"""Starting a command, what is refused, and how it settles (1A.2 to 1A.4; NL-01 to NL-04, NL-13 to NL-22)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.errors import Closed, InvalidRequest, NotAllowed, PolicyError
from stockade.tools.command_policy import BackgroundCommandPolicy
from stockade.tools.commands import BackgroundCommands
from support.agents import AWAIT_FILE, artifact_bytes, host, policy, run, settle, start
from support.programs import python


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


async def refusal(commands: BackgroundCommands, argv: object, **options: object) -> str:
    root = commands.get_policy()
    with pytest.raises(InvalidRequest) as refused:
        await commands.start(argv, **{"cwd": root.cwd_root if root else "/", **options})  # type: ignore[arg-type]
    assert commands.counts() == (0, 0)
    return str(refused.value)


@pytest.mark.case("NL-01")
async def test_a_command_is_running_at_first_and_has_exited_later(commands: BackgroundCommands, workspace: Path) -> None:
    task = await start(commands, python(AWAIT_FILE + "await_file('go'); print('the late line')"))
    first = await commands.status(task)
    assert first.state in ("queued", "running")
    assert (first.exit_code, first.stdout, first.stderr, first.error) == (None, None, None, None)
    assert first.tail_preview == "(no output yet)"
    (workspace / "go").touch()
    last = await settle(commands, task)
    assert (last.state, last.exit_code, last.error) == ("exited", 0, None)
    assert "the late line" in last.tail_preview


@pytest.mark.case("NL-02")
async def test_both_streams_are_counted_and_banked(commands: BackgroundCommands, background_executor: Executor) -> None:
    status = await run(commands, python("import sys; print('o' * 39); sys.stderr.write('errs'); sys.exit(7)"))
    assert (status.state, status.exit_code, status.stdout_bytes, status.stderr_bytes) == ("exited", 7, 40, 4)
    assert status.stdout is not None
    assert status.stderr is not None
    assert (status.stdout.kind, status.stderr.kind) == ("command-output", "command-output")
    assert (status.stdout.size_bytes, status.stderr.size_bytes) == (40, 4)
    assert await artifact_bytes(background_executor, status.stdout.artifact_id) == b"o" * 39 + b"\n"
    assert await artifact_bytes(background_executor, status.stderr.artifact_id) == b"errs"


@pytest.mark.case("NL-03")
async def test_a_settled_stream_is_read_through_retrieve_context(commands: BackgroundCommands) -> None:
    status = await run(commands, sh("echo exactly this"))
    assert status.stdout is not None
    page = await commands.tools.call("retrieve_context", {"artifactId": status.stdout.artifact_id, "limit": 1_000})
    assert page == {
        "artifactId": status.stdout.artifact_id,
        "content": "exactly this\n",
        "totalSize": 13,
        "hasMore": False,
        "offset": 0,
        "limit": 1_000,
    }


@pytest.mark.case("NL-04")
async def test_a_failing_command_has_a_code_and_no_error(commands: BackgroundCommands) -> None:
    status = await run(commands, sh("exit 42"))
    assert (status.state, status.exit_code, status.signal, status.error) == ("exited", 42, None, None)
    assert status.tail_preview == "(the command wrote no output)"


@pytest.mark.case("NL-13")
async def test_without_a_policy_nothing_is_started(background_executor: Executor) -> None:
    async with BackgroundCommands(background_executor) as commands:
        said = await refusal(commands, ["/usr/bin/true"])
        assert await refusal(commands, "no list") == said  # N-V1 comes first
    for way_out in ("setBackgroundCommandPolicy", "registerBackgroundCommandTools", "set_policy", "other tools"):
        assert way_out in said


@pytest.mark.case("NL-14")
@pytest.mark.parametrize("line", ["ls -l | wc -l", "true;true", "a&b", "a>b", "a<b", "$HOME", "`id`", "a\nb", "a\rb", "a\tb", "a b"])
async def test_a_shell_line_is_refused(commands: BackgroundCommands, line: str) -> None:
    assert "NO shell" in await refusal(commands, [line])


@pytest.mark.case("NL-15")
async def test_an_executable_that_is_not_permitted_is_refused(commands: BackgroundCommands) -> None:
    said = await refusal(commands, ["rm", "-rf", "/"])
    assert 'Executable "rm" is not allowed' in said
    assert "/bin/sh" in said
    assert 'is "' + "r" * 80 + '…"' in await refusal(commands, ["r" * 90 + ";"])


@pytest.mark.case("NL-15")
async def test_an_empty_allowlist_refuses_everything(background_executor: Executor, workspace: Path) -> None:
    async with host(background_executor, workspace, allowed_executables=()) as commands:
        assert "(none)" in await refusal(commands, ["/usr/bin/true"])


@pytest.mark.case("NL-16")
async def test_the_basename_of_a_permitted_path_is_not_permitted(commands: BackgroundCommands) -> None:
    assert 'Executable "python3" is not allowed' in await refusal(commands, ["python3", "-V"])


@pytest.mark.case("NL-17")
async def test_a_directory_outside_is_refused(commands: BackgroundCommands, workspace: Path) -> None:
    said = await refusal(commands, ["/usr/bin/true"], cwd="/etc")
    assert "Access denied" in said
    assert "outside the permitted root" in said
    assert str(workspace) in said


@pytest.mark.case("NL-18")
async def test_a_link_to_outside_is_refused(commands: BackgroundCommands, workspace: Path) -> None:
    (workspace / "link").symlink_to("/etc")
    said = await refusal(commands, ["/usr/bin/true"], cwd="link")
    assert "outside the permitted root" in said
    assert "'/etc'" in said
    assert str(workspace) in said


@pytest.mark.case("NL-19")
async def test_a_sibling_that_shares_the_prefix_is_refused(commands: BackgroundCommands, workspace: Path) -> None:
    sibling = Path(f"{workspace}-evil")
    sibling.mkdir()
    for cwd in (str(sibling), "../workspace-evil"):
        assert "outside the permitted root" in await refusal(commands, ["/usr/bin/true"], cwd=cwd)


async def test_directories_that_do_not_exist_are_refused_by_name(background_executor: Executor, workspace: Path) -> None:
    async with host(background_executor, workspace) as commands:
        said = await refusal(commands, ["/usr/bin/true"], cwd="nowhere")
        assert "'nowhere'" in said
        assert "exists inside" in said
    async with host(background_executor, workspace / "gone") as commands:
        assert "cwdRoot" in await refusal(commands, ["/usr/bin/true"], cwd=".")


async def test_a_root_that_is_a_link_and_a_directory_below_it_work(background_executor: Executor, workspace: Path, tmp_path: Path) -> None:
    (workspace / "below").mkdir()
    (tmp_path / "link").symlink_to(workspace)
    async with host(background_executor, tmp_path / "link") as commands:
        status = await run(commands, sh("pwd -P"), cwd="below")
    assert status.tail_preview == f"[stdout tail]\n{os.path.realpath(workspace)}/below\n"


@pytest.mark.case("NL-20")
async def test_the_hook_has_the_last_word_and_its_words_are_the_refusal(background_executor: Executor, workspace: Path) -> None:
    asked: list[tuple[tuple[str, ...], str]] = []

    def hook(argv: tuple[str, ...], cwd: str) -> object:
        asked.append((argv, cwd))
        return "not on a Sunday" if "-x" in argv else None

    (workspace / "link").symlink_to(".")
    async with host(background_executor, workspace, allowlist=hook) as commands:
        assert await refusal(commands, ["/usr/bin/true", "-x"], cwd="link") == "not on a Sunday"
        assert (await commands.tools.call("run_command_bg", {"argv": ["/usr/bin/true", "-x"]}))["error"] == "not on a Sunday"
        assert asked[0] == (("/usr/bin/true", "-x"), os.path.realpath(workspace))
        asked.clear()
        await refusal(commands, ["rm", "-x"])
        await refusal(commands, ["/usr/bin/true", "-x"], cwd="/etc")
        assert asked == []
        assert (await run(commands, ["/usr/bin/true"])).exit_code == 0


async def test_an_exception_of_the_hook_goes_through(background_executor: Executor, workspace: Path) -> None:
    def hook(argv: tuple[str, ...], cwd: str) -> object:
        raise LookupError("the hook broke")

    async with host(background_executor, workspace, allowlist=hook) as commands:
        with pytest.raises(LookupError, match="the hook broke"):
            await commands.start(["/usr/bin/true"], cwd=workspace)
        assert "the hook broke" in (await commands.tools.call("run_command_bg", {"argv": ["/usr/bin/true"]}))["error"]


@pytest.mark.case("NL-21")
async def test_a_missing_executable_settles_with_its_reason(background_executor: Executor, workspace: Path) -> None:
    (workspace / "data").write_text("no program")
    async with host(background_executor, workspace, allowed_executables=("no-such-program", "./data")) as commands:
        status = await run(commands, ["no-such-program", "--version"])
        assert (status.state, status.exit_code, status.signal) == ("exited", None, None)
        assert status.error is not None
        assert "could not be started" in status.error
        assert "ENOENT" in status.error
        for reference in (status.stdout, status.stderr):
            assert reference is not None
            assert reference.size_bytes == 0
            assert await artifact_bytes(background_executor, reference.artifact_id) == b""
        assert "EACCES" in str((await run(commands, ["./data"])).error)


async def test_strict_states_show_failed(background_executor: Executor, workspace: Path) -> None:
    async with BackgroundCommands(background_executor, strict_states=True) as commands:
        commands.set_policy(policy(workspace, allowed_executables=("no-such-program",)))
        assert (await run(commands, ["no-such-program"])).state == "failed"


@pytest.mark.case("NL-22")
async def test_the_environment_is_clean_inherited_or_replaced(background_executor: Executor, workspace: Path) -> None:
    show = python("import os; print(sorted(os.environ.items()))")

    async def environment(inherit: bool | tuple[str, ...], **options: object) -> str:
        async with host(background_executor, workspace, inherit_env=inherit) as commands:
            return (await run(commands, show, **options)).tail_preview

    assert "MARKER" not in await environment(False)
    assert "('MARKER', 'of the host')" in await environment(True)
    assert "('MARKER', 'of the host')" in await environment(("MARKER",))
    replaced = await environment(True, env={"ONLY": "this", "LC_ALL": "C.UTF-8"})
    assert replaced == "[stdout tail]\n[('LC_ALL', 'C.UTF-8'), ('ONLY', 'this')]\n"


async def test_the_checks_come_in_their_order(commands: BackgroundCommands) -> None:
    """N-V2 to N-V7, each with everything behind it wrong too."""
    assert "non-empty array" in await refusal(commands, "ls -l", cwd="/etc", timeout_ms=0)
    assert "non-empty array" in await refusal(commands, [])
    assert "Every entry" in await refusal(commands, ["a;b\0", 5], cwd="/etc", timeout_ms=0)
    assert "NUL" in await refusal(commands, ["a;b", "x\0"], cwd="/etc", timeout_ms=0)
    assert "argv[0] is empty" in await refusal(commands, ["", ";"], cwd="/etc", timeout_ms=0)
    assert "NO shell" in await refusal(commands, ["a;b"], cwd="/etc", timeout_ms=0)
    assert "is not allowed" in await refusal(commands, ["rm"], cwd="/etc", timeout_ms=0)
    assert "timeout_ms" in await refusal(commands, ["/usr/bin/true"], cwd="/etc", timeout_ms=0)
    assert "outside the permitted root" in await refusal(commands, ["/usr/bin/true"], cwd="/etc")


@pytest.mark.case("NX-04")
async def test_later_arguments_are_plain_data(commands: BackgroundCommands) -> None:
    data = ["a;b", "$(id)", "x\ny", "'q\" z", "*", "", "-é😀"]
    status = await run(commands, python("import sys; print(ascii(sys.argv[1:]))", *data))
    assert status.tail_preview == f"[stdout tail]\n{data!a}\n"


@pytest.mark.case("NX-16", "N-defect-9")
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "400"])
@pytest.mark.parametrize("field", ["timeout_ms", "max_output_bytes"])
async def test_numbers_that_are_none_are_refused(commands: BackgroundCommands, field: str, value: object) -> None:
    assert field in await refusal(commands, ["/usr/bin/true"], **{field: value})
    with pytest.raises(PolicyError, match=f"default_{field}|{field}"):
        policy(Path("/tmp"), **{f"default_{field}" if field == "timeout_ms" else field: value})


@pytest.mark.case("NX-22")
async def test_input_is_at_its_end_at_once(commands: BackgroundCommands) -> None:
    status = await run(commands, ["/usr/bin/cat"])
    assert (status.state, status.exit_code, status.stdout_bytes) == ("exited", 0, 0)


@pytest.mark.case("NX-23")
async def test_thirty_starts_at_once_have_thirty_ids(commands: BackgroundCommands) -> None:
    ids = await asyncio.gather(*(start(commands, ["/usr/bin/true"]) for _ in range(30)))
    assert len(set(ids)) == 30
    assert commands.counts().running + commands.counts().finished == 30
    statuses = await asyncio.gather(*(settle(commands, each) for each in ids))
    assert {(status.state, status.exit_code) for status in statuses} == {("exited", 0)}
    assert commands.counts() == (0, 0)


async def test_labels_are_what_was_said_or_the_first_words(commands: BackgroundCommands) -> None:
    assert (await run(commands, ["/usr/bin/true"], label="  a label  ")).label == "a label"
    assert (await run(commands, ["/usr/bin/true", "one", "two"])).label == "/usr/bin/true one"
    assert (await run(commands, ["/usr/bin/true"], label="x" * 70)).label == "x" * 60 + "…"


async def test_a_policy_of_its_own_neither_needs_nor_changes_the_hosts(background_executor: Executor, workspace: Path) -> None:
    """N-P5."""
    async with BackgroundCommands(background_executor) as commands:
        handle = await commands.start_with_policy(["/usr/bin/true"], policy(workspace), cwd=".")
        assert (await settle(commands, handle.task_id)).exit_code == 0
        assert commands.get_policy() is None
        with pytest.raises(NotAllowed, match="No background command policy"):
            await commands.start(["/usr/bin/true"], cwd=workspace)


async def test_a_disposed_host_starts_nothing_and_still_answers(background_executor: Executor, workspace: Path) -> None:
    commands = host(background_executor, workspace)
    done = await run(commands, sh("echo kept"))
    alive = await start(commands, ["/usr/bin/sleep", "60"])
    assert await commands.dispose() == ()
    ended = await commands.status(alive)
    assert ended.state == "killed"
    assert "its host instance was disposed" in str(ended.error)
    assert (await commands.read_output(done.task_id)).content == "kept\n"
    with pytest.raises(Closed, match="make a new one"):
        await commands.start(["/usr/bin/true"], cwd=workspace)


async def test_a_host_can_own_its_executor(workspace: Path) -> None:
    async with await BackgroundCommands.open() as commands:
        commands.set_policy(BackgroundCommandPolicy(allowed_executables=["/usr/bin/true"], cwd_root=workspace))
        assert (await run(commands, ["/usr/bin/true"])).exit_code == 0
    with pytest.raises(Closed):
        await commands.start(["/usr/bin/true"], cwd=workspace)


async def test_a_start_that_races_the_disposal_leaves_nothing_running(background_executor: Executor, workspace: Path) -> None:
    commands = host(background_executor, workspace)
    starts = [asyncio.create_task(commands.start(["/usr/bin/sleep", "60"], cwd=workspace)) for _ in range(4)]
    await asyncio.sleep(0)
    assert await commands.dispose() == ()
    ends = await asyncio.gather(*starts, return_exceptions=True)
    for end in ends:
        assert isinstance(end, Closed) or (await commands.status(end.task_id)).state == "killed"  # type: ignore[union-attr]
    assert background_executor.counters().running == 0


async def test_a_disposal_after_the_executor_was_closed_finds_nothing_to_do(workspace: Path, state: Path) -> None:
    async with Executor(Policy(), config=from_environment(state_dir=str(state))) as executor:
        commands = host(executor, workspace)
        await start(commands, ["/usr/bin/sleep", "60"])
    assert await commands.kill_all() == 0
    assert await commands.dispose() == ()
