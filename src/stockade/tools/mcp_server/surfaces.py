"""Which tools a server has on offer, and to whom what they start belongs: each client has its own, and sees no other's."""

from __future__ import annotations

import abc
import asyncio
from enum import StrEnum
from typing import Final

from stockade.errors import InvalidRequest
from stockade.executor import Executor
from stockade.policy.model import Policy
from stockade.tools.builtins import create_builtin_tools
from stockade.tools.command_policy import BackgroundCommandPolicy
from stockade.tools.commands import BackgroundCommands
from stockade.tools.mcp_server.default_tools import WAIT, DefaultTools
from stockade.tools.shells import BackgroundShells
from stockade.tools.toolset import Toolset

YEAR_MS: Final = 31_536_000_000


class Surface(StrEnum):
    """The sets of tools that there are."""

    DEFAULT = "default"  # bash, bash_output, bash_input, bash_kill
    COMMANDS = "commands"  # run_command_bg and its kin, contract N
    SHELLS = "shells"  # bash with run_in_background, contract T


class Offer(abc.ABC):
    """The tools of one server over one open executor."""

    @abc.abstractmethod
    async def tools(self, owner: str) -> Toolset:
        """What this client may call."""

    @abc.abstractmethod
    async def end(self, owner: str) -> None:
        """Ends all that this client has started: it will not come back."""


class DefaultOffer(Offer):
    """The default surface: one set of tools, which keeps clients apart by itself."""

    def __init__(self, default: DefaultTools) -> None:
        self.default = default

    async def tools(self, owner: str) -> Toolset:
        return self.default.tools

    async def end(self, owner: str) -> None:
        await self.default.kill_all(owner)


class CommandsOffer(Offer):
    """Contract N's tools, a host of background commands for each client."""

    def __init__(self, executor: Executor, policy: BackgroundCommandPolicy) -> None:
        self._executor = executor
        self._policy = policy
        self._hosts: dict[str, BackgroundCommands] = {}

    async def tools(self, owner: str) -> Toolset:
        host = self._hosts.get(owner)
        if host is None:
            host = self._hosts[owner] = BackgroundCommands(self._executor)
            host.register_background_command_tools(self._policy)
        return host.tools

    async def end(self, owner: str) -> None:
        if (host := self._hosts.pop(owner, None)) is not None:
            await host.dispose()


class ShellsOffer(Offer):
    """Contract T's tools, a registry of background shells for each client."""

    def __init__(self, executor: Executor, policy: Policy, base_dir: str) -> None:
        self._executor = executor
        self._policy = policy
        self._base_dir = base_dir
        self._clients: dict[str, tuple[Toolset, BackgroundShells]] = {}
        self._making = asyncio.Lock()

    async def tools(self, owner: str) -> Toolset:
        async with self._making:
            if owner not in self._clients:
                shells = BackgroundShells()
                tools = await create_builtin_tools(self._executor, background=shells, policy=self._policy, base_dir=self._base_dir)
                self._clients[owner] = (tools, shells)
            return self._clients[owner][0]

    async def end(self, owner: str) -> None:
        if (client := self._clients.pop(owner, None)) is not None:
            await client[1].close_all()


async def offer(surface: Surface, executor: Executor, policy: Policy, *, wait: float = WAIT) -> Offer:
    """The tools of a surface under a policy.

    Raises: InvalidRequest where the surface needs what the policy does not say.
    """
    match surface:
        case Surface.DEFAULT:
            tools = DefaultTools(executor, policy, wait=wait)
            await tools.recall()
            return DefaultOffer(tools)
        case Surface.COMMANDS:
            return CommandsOffer(executor, command_policy(policy))
        case Surface.SHELLS:
            return ShellsOffer(executor, policy, _workspace(policy, surface))


def command_policy(policy: Policy) -> BackgroundCommandPolicy:
    """What `commands` may run under a policy. Raises: InvalidRequest where it has no workspace, or names no executables."""
    if policy.executables is None:
        raise InvalidRequest(
            "--tools commands: the policy does not say which executables may be run",
            field="executables",
            hint='name them in a policy file: executables = ["git", "make"], and give it with --policy',
        )
    limits = policy.limits
    return BackgroundCommandPolicy(
        allowed_executables=policy.executables,
        cwd_root=_workspace(policy, Surface.COMMANDS),
        default_timeout_ms=YEAR_MS if limits.wall_time is None else limits.wall_time * 1_000,
        max_output_bytes=limits.output,
        grace_ms=limits.grace * 1_000,
        inherit_env=policy.inherit_env,
    )


def _workspace(policy: Policy, surface: Surface) -> str:
    if policy.workspace is None:
        raise InvalidRequest(f"--tools {surface}: there is no workspace", field="workspace", hint="give --workspace DIR")
    return policy.workspace
