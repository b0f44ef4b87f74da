"""The schemas of a surface's tools, without a server or a sandbox."""

from __future__ import annotations

from typing import Any

from stockade.errors import InvalidRequest
from stockade.executor import Executor
from stockade.policy.model import Policy
from stockade.tools.builtins import describe_builtin_tools
from stockade.tools.command_policy import BackgroundCommandPolicy
from stockade.tools.commands import BackgroundCommands
from stockade.tools.mcp_server.default_tools import DefaultTools
from stockade.tools.mcp_server.options import surface_of
from stockade.tools.mcp_server.surfaces import Surface
from stockade.tools.toolset import Toolset


def described(surface: str, shape: str) -> list[dict[str, Any]]:
    """The tools of a surface as `anthropic`, `openai` or `mcp` take them, in their order. Raises: InvalidRequest."""
    tools = _tools(surface_of(surface))
    match shape:
        case "anthropic":
            return tools.anthropic()
        case "openai":
            return tools.openai()
        case "mcp":
            return tools.mcp()
    raise InvalidRequest(f"--format: there is no format {shape!r}", field="format", hint="give one of anthropic, openai, mcp")


def _tools(surface: Surface) -> Toolset:
    executor = Executor(Policy())  # never opened: what a tool is called and takes does not depend on it
    match surface:
        case Surface.DEFAULT:
            return DefaultTools(executor, executor.policy).tools
        case Surface.COMMANDS:
            host = BackgroundCommands(executor)
            host.register_background_command_tools(BackgroundCommandPolicy(allowed_executables=(), cwd_root="/"))
            return host.tools
        case Surface.SHELLS:
            return describe_builtin_tools(executor)
