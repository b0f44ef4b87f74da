"""Descriptions and calls of tools, without any command."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from stockade.errors import NotAllowed
from stockade.tools.schemas import WHOLE, CallContext, Effects, Params, Tool, anthropic, call, mcp, openai
from stockade.tools.toolset import Toolset


class Look(Params):
    """The docstring is for readers of the source."""

    task_id: Annotated[str, Field(description="Which.")]
    wait_ms: float | None = None
    count: Annotated[int, Field(ge=1, le=9), WHOLE] = 5
    stream: Literal["stdout", "stderr"] = "stdout"
    names: list[str] = Field(default_factory=list)


async def look(params: Look, context: CallContext) -> Mapping[str, Any]:
    return {"params": params, "session": context.session_id}


LOOK = Tool("look", "Looks.", Look, look, advice='pass {"taskId": "x"}', effects=Effects(read_only=True))

SCHEMA = {
    "type": "object",
    "properties": {
        "taskId": {"type": "string", "description": "Which."},
        "waitMs": {"type": "number"},
        "count": {"type": "integer", "default": 5, "minimum": 1, "maximum": 9},
        "stream": {"type": "string", "default": "stdout", "enum": ["stdout", "stderr"]},
        "names": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["taskId"],
    "additionalProperties": False,
}


def test_each_model_api_gets_its_own_shape() -> None:
    assert anthropic(LOOK) == {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
    assert openai(LOOK) == {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}
    assert mcp(LOOK) == {
        "name": "look",
        "description": "Looks.",
        "inputSchema": SCHEMA,
        "annotations": {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
    }
    assert list(LOOK.input_schema["properties"]) == ["taskId", "waitMs", "count", "stream", "names"]
    assert LOOK.shape == "{taskId: string, waitMs?: number, count?: integer, stream?: stdout|stderr, names?: string[]}"


def test_the_strict_dialect_requires_everything_and_lets_it_be_null() -> None:
    function = openai(LOOK, strict=True)["function"]
    assert function["strict"] is True
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "taskId": {"type": "string", "description": "Which."},
            "waitMs": {"type": ["number", "null"]},
            "count": {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
            "stream": {"type": ["string", "null"], "enum": ["stdout", "stderr", None]},
            "names": {"type": ["array", "null"], "items": {"type": "string"}},
        },
        "required": ["taskId", "waitMs", "count", "stream", "names"],
        "additionalProperties": False,
    }


async def test_arguments_are_taken_as_they_are_meant() -> None:
    result = await call(LOOK, {"taskId": "x", "waitMs": 5, "count": 3.0, "stream": None, "names": ["a"]}, CallContext("session"))
    assert result == {"params": Look(taskId="x", waitMs=5.0, count=3, names=["a"]), "session": "session"}
    assert (await call(LOOK, {"taskId": "x"}))["session"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (None, "look: its arguments are one object, not None."),
        ("text", "look: its arguments are one object, not 'text'."),
        ({}, "look: taskId is missing."),
        ({"taskId": None}, "look: taskId: input should be a valid string, not None."),
        ({"taskId": 5}, "look: taskId: input should be a valid string, not 5."),
        ({"task_id": "x"}, "look: taskId is missing; there is no argument 'task_id'."),
        ({"taskId": "x", "count": True}, "look: count: input should be a valid integer, not True."),
        ({"taskId": "x", "count": "5"}, "look: count: input should be a valid integer, not '5'."),
        ({"taskId": "x", "count": 0}, "look: count: input should be greater than or equal to 1, not 0."),
        ({"taskId": "x", "waitMs": float("nan")}, "look: waitMs: input should be a finite number, not nan."),
        ({"taskId": "x", "stream": "both"}, "look: stream: input should be 'stdout' or 'stderr', not 'both'."),
        ({"taskId": "x" * 200, "names": ["a" * 200, 5]}, "look: names.1: input should be a valid string, not 5."),
    ],
)
async def test_misshapen_arguments_are_refused_in_band(arguments: object, said: str) -> None:
    expected = f'{said} Expected {LOOK.shape}. Recovery: pass {{"taskId": "x"}}.'
    assert await call(LOOK, arguments) == {"isError": True, "error": expected}


async def test_errors_of_ours_are_refusals_and_others_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(params: Params, context: CallContext) -> Mapping[str, Any]:
        raise NotAllowed("not today", field="argv", hint="try tomorrow")

    async def fail(params: Params, context: CallContext) -> Mapping[str, Any]:
        raise RuntimeError("a bug")

    assert await call(Tool("refuse", "", Params, refuse), {}) == {"isError": True, "error": "not today\nhint: try tomorrow"}
    with caplog.at_level(logging.ERROR, logger="stockade"):
        answer = await call(Tool("fail", "", Params, fail), {})
    assert answer["isError"] is True
    assert answer["error"].startswith("fail failed inside: RuntimeError('a bug').")
    assert "tool fail failed" in caplog.text


async def test_a_toolset_keeps_each_name_once_and_in_its_place() -> None:
    other = Tool("other", "", Params, look)
    tools = Toolset()
    tools.register(LOOK, other)
    replaced = Tool("look", "Looks again.", Look, look)
    tools.register(replaced)
    assert tools.names == ("look", "other")
    assert list(tools) == [replaced, other]
    assert [each["name"] for each in tools.anthropic()] == [each["name"] for each in tools.mcp()] == ["look", "other"]
    tools.unregister("look", "nonsense")
    assert "look" not in tools
    assert len(tools) == 1
    assert "the tools are other" in (await tools.call("look", {}))["error"]


@pytest.mark.parametrize("wrong", [{"taskId": "a\ud800"}, {"taskId": "a", "names": ["b", "\udfff"]}, {"\ud800": 1, "taskId": "a"}])
async def test_half_a_character_is_refused_since_no_answer_could_hold_it(wrong: dict[str, Any]) -> None:
    """JSON may carry the escape of a lone surrogate, as of a text that was cut inside a pair; nothing can encode it."""
    refused = await call(LOOK, wrong)
    assert refused["isError"]
    refused["error"].encode()


async def test_what_cannot_be_shown_is_refused_all_the_same() -> None:
    for arguments in ({"taskId": 10**5000}, {"taskId": "x", "count": 10**5000}, 10**5000):
        refused = await call(LOOK, arguments)
        assert "too long to show" in refused["error"]
    tools = Toolset()
    tools.register(LOOK)
    assert (await tools.call([], {}))["isError"]  # type: ignore[arg-type]
