"""What a caller's paths may bring into sight, and what an answer about them may give away."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.errors import ExecutableNotFound, InvalidRequest, NotExecutable
from stockade.tools.builtins import create_builtin_tools
from stockade.tools.command_policy import BackgroundCommandPolicy
from stockade.tools.commands import BackgroundCommands
from stockade.tools.git_toolset import register_git_tools
from stockade.tools.toolset import Toolset
from support.programs import shell
from support.repositories import commit, git


@pytest.mark.parametrize("field", ["workspace", "ro", "rw"])
async def test_no_path_brings_the_records_of_all_jobs_into_sight(tmp_path: Path, field: str) -> None:
    """A workspace of /tmp would: the state lies there by default, and root's files are the job's through an idmapped mount.

    Control: the same directory is granted where the state lies elsewhere.
    """
    granted = tmp_path / "granted"
    granted.mkdir()
    policy = Policy(**{field: str(granted) if field == "workspace" else [str(granted)]})
    async with Executor(policy, config=from_environment(state_dir=str(granted / "deep" / "state"))) as executor:
        with pytest.raises(InvalidRequest, match="records of all jobs") as caught:
            await executor.run(["/usr/bin/true"])
    assert caught.value.field == field
    async with Executor(policy, config=from_environment(state_dir=str(tmp_path / "state"))) as executor:
        assert (await executor.run(["/usr/bin/true"])).ok


async def test_the_default_state_is_not_granted_with_the_temporary_directory() -> None:
    async with Executor(Policy(workspace=tempfile.gettempdir())) as executor:
        with pytest.raises(InvalidRequest, match="records of all jobs"):
            await executor.run(shell("ls stockade-*"))


async def test_an_answer_about_a_program_does_not_tell_which_files_the_host_has(workspace: Path, tmp_path: Path) -> None:
    """Whoever may start jobs could ask for one path after another, by name or through a link in the workspace.

    Control: of a path inside the answer does tell.
    """
    secret, program, missing = tmp_path / "secret", tmp_path / "program", tmp_path / "missing"
    secret.write_text("")
    program.write_text("")
    program.chmod(0o755)
    (workspace / "plain").write_text("")
    answers: dict[str, list[str]] = {}
    async with Executor(Policy(workspace=str(workspace))) as executor:
        for name, path in {"secret": secret, "missing": missing, "program": program}.items():
            (workspace / "link").symlink_to(path)
            for argv0 in (str(path), "./link"):
                with pytest.raises(ExecutableNotFound) as caught:
                    await executor.run([argv0])
                answers.setdefault(name, []).append(f"{caught.value.message} {caught.value.hint}".replace(str(path), "PATH"))
            os.unlink(workspace / "link")
        with pytest.raises(NotExecutable):
            await executor.run(["./plain"])
        with pytest.raises(ExecutableNotFound):
            await executor.run(["./not-there"])
    assert answers["secret"] == answers["missing"] == answers["program"]
    told = "was not found" if tmp_path.is_relative_to("/tmp") else "is not visible inside"  # /tmp is the job's own
    assert all(told in answer for answer in answers["secret"])


async def test_an_answer_about_a_directory_does_not_tell_what_the_host_has(workspace: Path, tmp_path: Path) -> None:
    """A model that may name a working directory, of a command, of a shell or of git, asks for one path of the host after another.

    Outside of what may be seen, a path gets the same words whether it is there, is a link, or is not. Control: inside it does not.
    """
    git(workspace, "init", "--quiet")
    (workspace / "link").symlink_to(tmp_path)
    (workspace / "inside").mkdir()
    commit(workspace, "first")
    relative = ("../secret", "../secret/x", "link/secret", "link/away/x", "link/missing", "link/secret/../workspace/inside")
    probes = (*relative, *(f"{tmp_path}/{each}" for each in ("secret", "secret/../workspace", "secret/x", "loop/x", "away", "missing")))
    policy = BackgroundCommandPolicy(allowed_executables=("/usr/bin/true",), cwd_root=str(workspace))
    async with Executor(Policy(workspace=str(workspace))) as executor, BackgroundCommands(executor) as commands:
        commands.register_background_command_tools(policy)
        register_git_tools(repository := Toolset(), executor, repo_root=workspace)
        shells = [await create_builtin_tools(executor, base_dir=workspace, confine_to_base_dir=confined) for confined in (False, True)]

        async def ask(path: str) -> list[str]:
            said = [await commands.tools.call("run_command_bg", {"argv": ["/usr/bin/true"], "cwd": path})]
            said += [await tools.call("bash", {"command": "true", "workdir": path}) for tools in shells]
            said.append(await repository.call("git_blame", {"path": path}))
            return [str(each.get("error")) for each in said]

        inside = [await ask(path) for path in ("inside", "inside/missing")]
        before = [await ask(probe) for probe in probes]
        (tmp_path / "secret").mkdir()
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "away").symlink_to("/usr/share")
        (tmp_path / "missing").symlink_to("/root/elsewhere")
        after = [await ask(probe) for probe in probes]
    assert before == after
    assert all("outside" in answer for answers in before for answer in answers), before
    assert inside[0][:3] == ["None"] * 3
    assert all("exist" in answer for answer in inside[1][:3])
