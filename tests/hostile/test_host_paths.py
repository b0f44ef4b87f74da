"""What a caller's paths may bring into sight, and what an answer about them may give away."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from stockade import Executor, Policy
from stockade.config import from_environment
from stockade.errors import ExecutableNotFound, InvalidRequest
from support.programs import shell


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

    Only for programs does the answer name the path, since there the hint is to add it to the policy: that is the control.
    """
    secret, program, missing = tmp_path / "secret", tmp_path / "program", tmp_path / "missing"
    secret.write_text("")
    program.write_text("")
    program.chmod(0o755)
    answers: dict[str, list[str]] = {}
    async with Executor(Policy(workspace=str(workspace))) as executor:
        for name, path in {"secret": secret, "missing": missing, "program": program}.items():
            (workspace / "link").symlink_to(path)
            for argv0 in (str(path), "./link"):
                with pytest.raises(ExecutableNotFound) as caught:
                    await executor.run([argv0])
                answers.setdefault(name, []).append(f"{caught.value.message} {caught.value.hint}".replace(str(path), "PATH"))
            os.unlink(workspace / "link")
    assert answers["secret"] == answers["missing"]
    assert answers["program"][0].startswith("executable 'PATH' is 'PATH' on the host, which is not visible inside")
