"""The shell tools of contract T (1D): `bash`, and with a registry of background shells also `bash_output` and `kill_shell`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from stockade.bank.windows import MAX_CHARS
from stockade.confinement import follow
from stockade.errors import InvalidRequest, NotAllowed, StateError, UnknownJob
from stockade.executor import Executor
from stockade.jobs.records import JobRecord
from stockade.policy.model import Overflow, Policy
from stockade.policy.quantities import shown
from stockade.seam import abort_reason
from stockade.tools.bash_policy import QUIET, check_directory, checked_ms, shell_policy
from stockade.tools.bash_text import shown_ms
from stockade.tools.bash_tools import Filled, Verbatim
from stockade.tools.schemas import CallContext, Effects, Tool
from stockade.tools.shells import STREAM, BackgroundShells, exit_code
from stockade.tools.toolset import Toolset

BASH: Final = "bash"
OUTPUT: Final = "bash_output"
KILL: Final = "kill_shell"

TIMEOUT_MS: Final = 60_000
KILL_GRACE_MS: Final = 2_000
SHELLS: Final = (("/bin/sh", "-c"), ("sh", "-c"))  # tried in this order
_WHO: Final = "builtins"


class BashParams(Verbatim):
    """Arguments of `bash`."""

    command: Annotated[Filled, Field(description="The shell command to run.")]
    workdir: Annotated[str | None, Field(description="Where to run; relative to the base directory.")] = None
    timeout: Annotated[float | None, Field(gt=0, description=f"Time budget in milliseconds; {TIMEOUT_MS} if left out.")] = None
    description: Annotated[str | None, Field(description="What it does, in a few words.")] = None


class BackgroundBashParams(BashParams):
    """Arguments of `bash` where there is a registry of background shells."""

    run_in_background: Annotated[bool, Field(description="Return at once; no timeout applies.")] = False


class ShellParams(Verbatim):
    """Arguments of `bash_output` and `kill_shell`."""

    id: Annotated[Filled, Field(description="The backgroundId that bash returned.")]


class _Shells:
    """The three operations over one executor."""

    def __init__(
        self,
        executor: Executor,
        policy: Policy,
        shell: tuple[str, ...],
        base: str,
        background: BackgroundShells | None,
        *,
        is_confined: bool,
    ) -> None:
        self._executor = executor
        self._policy = policy
        self._shell = shell
        self._base = base
        self._background = background
        self._is_confined = is_confined

    async def bash(self, params: BashParams, context: CallContext) -> Mapping[str, Any]:
        workdir = await self._executor.call(self._workdir, params.workdir)
        if isinstance(params, BackgroundBashParams) and params.run_in_background:
            return await self._in_background(params, workdir)
        timeout = TIMEOUT_MS if params.timeout is None else params.timeout
        job_id = await self._launch(params.command, workdir, timeout, abort=context.abort)
        try:
            record = await self._executor.wait(job_id)
        except asyncio.CancelledError:
            await asyncio.shield(self._executor.kill(job_id, reason="the call was cancelled"))
            raise
        return await self._result(record, timeout, context)

    async def output(self, params: ShellParams, context: CallContext) -> Mapping[str, Any]:
        new = await self._registry.read(params.id)
        parts = [f"[{new.lost_bytes} bytes before this are no longer kept]"] if new.lost_bytes else []
        parts += [new.content] if new.content else []
        parts += [f"[more output is there already: call {OUTPUT} again]"] if new.has_more else []
        text = "".join(part if part.endswith("\n") else part + "\n" for part in parts) + new.info.status_line
        code = {} if new.info.exit_code is None else {"exitCode": new.info.exit_code}
        return {"output": text, "metadata": {"status": new.info.status, **code}}

    async def kill(self, params: ShellParams, context: CallContext) -> Mapping[str, Any]:
        info = await self._registry.kill_shell(params.id)
        text = f"killed background shell {info.id}" if info.killed else f"background shell {info.id} had already exited"
        return {"output": f"{text} {info.status_line}", "metadata": {"killed": info.killed}}

    @property
    def _registry(self) -> BackgroundShells:
        assert self._background is not None
        return self._background

    async def _in_background(self, params: BashParams, workdir: str) -> Mapping[str, Any]:
        self._registry.check_open()
        job_id = await self._launch(params.command, workdir, None, abort=None)
        info = await self._registry.add(self._executor, job_id, params.command)
        return {
            "output": f"started background shell {info.id}; read it with {OUTPUT}, end it with {KILL}",
            "metadata": {"backgroundId": info.id, "shell": " ".join(self._shell)},
        }

    async def _launch(self, command: str, workdir: str, timeout_ms: float | None, *, abort: asyncio.Event | None) -> str:
        job = await self._executor.start_with_policy(
            [*self._shell, command],
            self._policy.replace(limits={"wall_time": None if timeout_ms is None else timeout_ms / 1_000}),
            cwd=workdir,
            env=QUIET,
            abort=abort,
            label=command[:200],
        )
        return job.id

    async def _result(self, record: JobRecord, timeout_ms: float, context: CallContext) -> Mapping[str, Any]:
        outcome = record.outcome
        metadata: dict[str, Any] = {"shell": " ".join(self._shell), "exitCode": exit_code(record)}
        if outcome is None:
            await self._executor.result(record.id)  # raises the reason
        text = await self._text(record.id)
        if outcome is not None and outcome.kind == "exited" and outcome.exit_code == 0:
            return {"output": text, "metadata": metadata}
        said = f"exited with code {metadata['exitCode']}"
        if outcome is not None and outcome.kind == "timed_out":
            metadata |= {"timedOut": True, "killedTree": True}
            said = f"timed out after {shown_ms(timeout_ms)}ms"
        elif outcome is not None and outcome.kind == "aborted":
            said = f"aborted: {abort_reason(context.abort) if context.abort is not None else 'the call was called off'}"
        elif outcome is not None and outcome.kind not in ("exited", "signaled"):
            said = f"[{outcome.sentence()}]\n{said}"
        between = "\n" if text and not text.endswith("\n") else ""
        return {"isError": True, "error": f"{text}{between}{said}", "metadata": metadata}

    async def _text(self, job_id: str) -> str:
        try:
            tail = await self._executor.tail(job_id, STREAM, chars=MAX_CHARS)
        except (UnknownJob, StateError):  # called off before it ran
            return ""
        return tail.content if tail.whole else f"[the first {tail.byte_offset} bytes are left out]\n{tail.content}"

    def _workdir(self, workdir: str | None) -> str:
        """The directory to run in, once it is there and, where confined, really inside (1D.2); blocks."""
        if "\0" in (workdir or ""):
            raise InvalidRequest("workdir: it contains a NUL byte", field="workdir", hint="remove it")
        path = self._base if not workdir else os.path.join(self._base, workdir)
        if self._is_confined:
            root = os.path.realpath(self._base)
            led = follow(os.path.join(root, workdir or ""), [root])
            if led.root is None:
                raise NotAllowed(
                    f"workdir: {shown(workdir)} is {shown(led.path)}, outside of the base directory {shown(root)}",
                    field="workdir",
                    hint="name a directory inside it, relative to it",
                )
        check_directory("workdir", path, self._policy)
        return path


async def create_builtin_tools(
    executor: Executor,
    *,
    background: BackgroundShells | None = None,
    kill_grace_ms: float = KILL_GRACE_MS,
    shell: Sequence[str] | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    confine_to_base_dir: bool = False,
    policy: Policy | None = None,
    enabled: bool = True,
    tools: Mapping[str, bool] | None = None,
) -> Toolset:
    """The shell tools on an open executor; `bash_output` and `kill_shell` only with a registry (T-2).

    Commands see the base directory (by default that of this process), and what `policy` adds. `shell` is an argv prefix, used
    verbatim. `tools` switches single ones off by name; names that are none are ignored.

    Raises: InvalidRequest with the field; PolicyError.
    """
    grace = checked_ms("kill_grace_ms", kill_grace_ms, what=_WHO) / 1_000
    if confine_to_base_dir and base_dir is None:
        raise InvalidRequest("confine_to_base_dir needs base_dir", field="confine_to_base_dir", hint="set base_dir, or leave both out")
    switches = dict(tools or {})
    offered = Toolset()
    if not enabled or not switches.get(BASH, True):
        return offered
    base = await executor.call(os.path.abspath, os.fspath(base_dir) if base_dir else ".")
    prefix = await executor.call(_found_shell) if shell is None else _prefix(shell)
    sealed = shell_policy(policy, base).replace(merge_streams=True, overflow=Overflow.KEEP_TAIL, limits={"grace": min(grace, 3_600.0)})
    shells = _Shells(executor, sealed, prefix, base, background, is_confined=confine_to_base_dir)
    offered.register(*(tool for tool in _tools(shells, has_background=background is not None) if switches.get(tool.name, True)))
    return offered


def describe_builtin_tools(executor: Executor) -> Toolset:
    """All three tools on an executor that need not be open: for their schemas."""
    offered = Toolset()
    shells = _Shells(executor, executor.policy, SHELLS[0], "/", BackgroundShells(), is_confined=False)
    offered.register(*_tools(shells, has_background=True))
    return offered


def _tools(shells: _Shells, *, has_background: bool) -> tuple[Tool[Any], ...]:
    more = f" With run_in_background it returns a backgroundId at once; read with {OUTPUT}, end with {KILL}." if has_background else ""
    bash = Tool(
        BASH,
        f"Runs a shell command, sealed from the host, and returns what it wrote; failing is an error with its exit code.{more}",
        BackgroundBashParams if has_background else BashParams,
        shells.bash,
        advice='pass {"command": "ls -l"}',
        effects=Effects(destructive=True, open_world=True),
    )
    if not has_background:
        return (bash,)
    an_id = f'pass {{"id": "…"}} with a backgroundId that {BASH} returned'
    return (
        bash,
        Tool(
            OUTPUT,
            "What a background shell wrote since it was last read, and its status.",
            ShellParams,
            shells.output,
            advice=an_id,
            effects=Effects(read_only=True),
        ),
        Tool(
            KILL,
            "Ends a background shell with everything it has started, and returns when it is gone.",
            ShellParams,
            shells.kill,
            advice=an_id,
            effects=Effects(destructive=True, idempotent=True),
        ),
    )


def _prefix(shell: Sequence[str]) -> tuple[str, ...]:
    if isinstance(shell, str) or not shell or not all(isinstance(each, str) and each for each in shell):
        raise InvalidRequest(f"shell: {shown(shell)} is no argv prefix", field="shell", hint='give a list such as ["/bin/bash", "-c"]')
    return tuple(shell)


def _found_shell() -> tuple[str, ...]:
    """The first shell that this host has; blocks. Raises: InvalidRequest naming what was tried and both ways out."""
    for program, *rest in SHELLS:
        places = (program,) if "/" in program else tuple(f"{directory}/{program}" for directory in Policy().path)
        if any(os.access(place, os.X_OK) for place in places):
            return (program, *rest)
    tried = ", ".join(" ".join(each) for each in SHELLS)
    raise InvalidRequest(
        f"no shell was found; tried {tried}",
        field="shell",
        hint='give shell=["/path/to/sh", "-c"], or switch bash off: tools={"bash": False}',
    )
