"""The tools that a host has on offer, by name, in the order in which they were first registered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stockade.tools import schemas
from stockade.tools.schemas import CallContext, Tool, refusal


class Toolset:
    """A set of tools, each name once. Registering a name again replaces its tool and keeps its place."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool[Any]] = {}

    def register(self, *tools: Tool[Any]) -> None:
        """Offers `tools`; those that are on offer already are replaced."""
        self._tools.update((tool.name, tool) for tool in tools)

    def unregister(self, *names: str) -> None:
        """Takes tools off the offer; names that are not on it are no error."""
        for name in names:
            self._tools.pop(name, None)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tools, in their order."""
        return tuple(self._tools)

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool[Any]]:
        return iter(tuple(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    async def call(self, name: str, arguments: object, context: CallContext | None = None) -> dict[str, Any]:
        """The result of one call of the tool `name`; see `schemas.call`. An unknown name is refused in band."""
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            return refusal(f"there is no tool {name!r:.80}; the tools are {', '.join(self.names) or '(none)'}")
        return await schemas.call(tool, arguments, context)

    def anthropic(self) -> list[dict[str, Any]]:
        """All tools as Anthropic's API takes them."""
        return [schemas.anthropic(tool) for tool in self]

    def openai(self, *, strict: bool = False) -> list[dict[str, Any]]:
        """All tools as OpenAI's API takes them."""
        return [schemas.openai(tool, strict=strict) for tool in self]

    def mcp(self) -> list[dict[str, Any]]:
        """All tools as the Model Context Protocol lists them."""
        return [schemas.mcp(tool) for tool in self]
