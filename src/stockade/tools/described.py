"""The schemas of every tool, a surface at a time, without a server or a sandbox: what a tool is called and takes depends on neither."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from stockade.errors import InvalidRequest
from stockade.executor import Executor
from stockade.policy.model import Policy
from stockade.tools.bash_executor import SandboxedBash
from stockade.tools.bash_tools import BashTools
from stockade.tools.builtins import describe_builtin_tools
from stockade.tools.checklist import register_task_tools
from stockade.tools.command_policy import BackgroundCommandPolicy
from stockade.tools.commands import BackgroundCommands
from stockade.tools.git_toolset import register_git_tools
from stockade.tools.job_runtime import JobRuntime
from stockade.tools.job_tools import JobTools
from stockade.tools.mcp_server.default_tools import DefaultTools
from stockade.tools.sessions import HostSession
from stockade.tools.toolset import Toolset

_SOMEWHERE: Final = "/workspace"


def described(surface: str, shape: str) -> list[dict[str, Any]]:
    """The tools of a surface as `anthropic`, `openai` or `mcp` take them, in their order. Raises: InvalidRequest."""
    make = _SURFACES.get(surface)
    if make is None:
        raise InvalidRequest(f"--tools: there is no surface {surface!r}", field="tools", hint=f"give one of {', '.join(SURFACES)}")
    tools = make(Executor(Policy()))  # never opened
    match shape:
        case "anthropic":
            return tools.anthropic()
        case "openai":
            return tools.openai()
        case "mcp":
            return tools.mcp()
    raise InvalidRequest(f"--format: there is no format {shape!r}", field="format", hint="give one of anthropic, openai, mcp")


def _default(executor: Executor) -> Toolset:
    return DefaultTools(executor, executor.policy).tools


def _commands(executor: Executor) -> Toolset:
    host = BackgroundCommands(executor)
    host.register_background_command_tools(BackgroundCommandPolicy(allowed_executables=(), cwd_root=_SOMEWHERE))
    host.offer_retrieval()
    return host.tools


def _bash(executor: Executor) -> Toolset:
    tools = Toolset()
    BashTools(tools, SandboxedBash(executor, cwd=_SOMEWHERE))
    return tools


def _jobs(executor: Executor) -> Toolset:
    tools = Toolset()
    JobTools(tools, JobRuntime())
    return tools


def _checklist(executor: Executor) -> Toolset:
    tools = Toolset()
    register_task_tools(tools, session=HostSession())
    return tools


def _git(executor: Executor) -> Toolset:
    tools = Toolset()
    register_git_tools(tools, executor, repo_root=_SOMEWHERE)
    return tools


_SURFACES: Final[Mapping[str, Callable[[Executor], Toolset]]] = {
    "default": _default,
    "commands": _commands,
    "bash": _bash,
    "jobs": _jobs,
    "shells": describe_builtin_tools,
    "checklist": _checklist,
    "git": _git,
}
SURFACES: Final = tuple(_SURFACES)
