"""How a tool is described to a model, and how it is called: one value, exported in the shape of each model API (U-30, U-31).

A tool is a name, a description, a pydantic model of its arguments and one asynchronous operation. `call` never raises: what is
wrong comes back as `{"isError": true, "error": …}`, and the text names the way out. Nothing is cached, ever: two calls with the
same arguments are two operations.

    class Greet(Params):
        first_name: str                                   # firstName on the wire

    async def greet(params: Greet, context: CallContext) -> Mapping[str, Any]:
        return {"text": f"Hello {params.first_name}"}

    tool = Tool("greet", "Says hello.", Greet, greet, advice='pass {"firstName": "Ada"}')
    await call(tool, {"firstName": "Ada"})
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from stockade.errors import StockadeError

_LOG: Final = logging.getLogger("stockade")
_SHOWN: Final = 80  # characters of a model's own value that an error text repeats
_REASONS: Final = 5  # in one refusal


class Params(BaseModel):
    """Base of the models of arguments: camelCase on the wire, and no argument but those that are named (U-30).

    Types are taken at their word: "5" is no number, 1 is no string, true is no integer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, alias_generator=to_camel)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# A whole number as JSON has it: 5 and 5.0 are the same there. Bounds come before it: Annotated[int, Field(ge=1), WHOLE].
WHOLE: Final = BeforeValidator(_whole)
Whole = Annotated[int, WHOLE]

P = TypeVar("P", bound=Params)


@dataclass(frozen=True, slots=True)
class CallContext:
    """What the host says about a call, which the model cannot: whose conversation it is part of, and that it is called off."""

    session_id: str | None = None
    abort: asyncio.Event | None = None


@dataclass(frozen=True, slots=True)
class Effects:
    """What a call may do, for hosts that ask a person first (the annotations of MCP)."""

    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False


Operation = Callable[[P, CallContext], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Tool(Generic[P]):
    """One tool. `advice` is the sentence that says what to pass, at the end of a refusal of misshapen arguments."""

    name: str
    description: str
    params: type[P]
    operation: Operation[P]
    advice: str = ""
    effects: Effects = field(default_factory=Effects)

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments: self-contained, in the order of the model's fields."""
        return _tidied(self.params.model_json_schema(by_alias=True))

    @property
    def shape(self) -> str:
        """The arguments in one line, such as `{taskId: string, waitMs?: number}`."""
        schema = self.input_schema
        required = schema.get("required", ())
        parts = [f"{name}{'' if name in required else '?'}: {_word(each)}" for name, each in schema["properties"].items()]
        return f"{{{', '.join(parts)}}}"


def refusal(error: str) -> dict[str, Any]:
    """The in-band form of everything that went wrong."""
    return {"isError": True, "error": error}


async def call(tool: Tool[Any], arguments: object, context: CallContext | None = None) -> dict[str, Any]:
    """The result of one call; never raises but for the cancellation of the calling task."""
    try:
        params = _parsed(tool, arguments)
    except _Misshapen as wrong:
        return refusal(str(wrong))
    try:
        return dict(await tool.operation(params, context or CallContext()))
    except StockadeError as error:
        return refusal(str(error))
    except Exception as error:  # noqa: BLE001 - a model can do nothing with a traceback, and its host must live on
        _LOG.exception("tool %s failed", tool.name)
        return refusal(f"{tool.name} failed inside: {error!r}. Nothing is known about its effect; look before you call it again.")


def anthropic(tool: Tool[Any]) -> dict[str, Any]:
    """The tool as Anthropic's API takes it."""
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}


def openai(tool: Tool[Any], *, strict: bool = False) -> dict[str, Any]:
    """The tool as OpenAI's API takes it; with `strict` in its strict dialect, where what is optional is nullable instead."""
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    if strict:
        function["parameters"] = _all_required(function["parameters"])
        function["strict"] = True
    return {"type": "function", "function": function}


def mcp(tool: Tool[Any]) -> dict[str, Any]:
    """The tool as the Model Context Protocol lists it."""
    effects = tool.effects
    hints = {
        "readOnlyHint": effects.read_only,
        "destructiveHint": effects.destructive,
        "idempotentHint": effects.idempotent,
        "openWorldHint": effects.open_world,
    }
    return {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema, "annotations": hints}


class _Misshapen(Exception):
    pass


def _parsed(tool: Tool[P], arguments: object) -> P:
    if not isinstance(arguments, Mapping):
        raise _Misshapen(f"{tool.name}: its arguments are one object, not {_shown(arguments)}. {_expected(tool)}")
    optional = {info.alias or name for name, info in tool.params.model_fields.items() if not info.is_required()}
    # A null for what may be left out is how some models leave it out, and the only way in OpenAI's strict dialect.
    given = {name: value for name, value in arguments.items() if value is not None or name not in optional}
    for name, value in given.items():
        if not _is_text(value):
            raise _Misshapen(
                f"{tool.name}: {_shown(name)} holds half a character (a lone surrogate), which nothing can encode. {_expected(tool)}"
            )
    try:
        return tool.params.model_validate(given)
    except ValidationError as error:
        reasons = [_reason(each) for each in error.errors(include_url=False)[:_REASONS]]
    raise _Misshapen(f"{tool.name}: {'; '.join(reasons)}. {_expected(tool)}")


def _is_text(value: object) -> bool:
    """False where a string in it, at any depth, cannot be encoded."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            try:
                each.encode()
            except UnicodeEncodeError:
                return False
        elif isinstance(each, Mapping):
            pending += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            pending += each
    return True


def _expected(tool: Tool[Any]) -> str:
    advice = f" Recovery: {tool.advice.rstrip('.')}." if tool.advice else ""
    return f"Expected {tool.shape}.{advice}"


def _reason(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "the arguments"
    match error["type"]:
        case "missing":
            return f"{where} is missing"
        case "extra_forbidden":
            return f"there is no argument {_shown(where)}"
        case _:
            said = str(error["msg"])
            return f"{where}: {said[:1].lower()}{said[1:]}, not {_shown(error['input'])}"


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a value of type {type(value).__name__} that is too long to show"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _tidied(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without pydantic's titles and references, and with what may be left out in place of what may be null."""
    definitions = schema.get("$defs", {})

    def tidy(part: Any) -> Any:
        if isinstance(part, list):
            return [tidy(each) for each in part]
        if not isinstance(part, Mapping):
            return part
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            return tidy({**definitions[name], **{key: value for key, value in part.items() if key != "$ref"}})
        out: dict[str, Any] = {}
        for key, value in part.items():
            if key == "properties":
                out[key] = {name: _without_title(tidy(each)) for name, each in value.items()}
            elif key != "$defs":
                out[key] = tidy(value)
        if (choices := out.get("anyOf")) and {"type": "null"} in choices and out.get("default", ...) is None:
            left = [choice for choice in choices if choice != {"type": "null"}]
            rest = {key: value for key, value in out.items() if key not in ("anyOf", "default")}
            return {**rest, **left[0]} if len(left) == 1 else {**rest, "anyOf": left}
        return out

    tidied: dict[str, Any] = _without_title(tidy(schema))
    tidied.pop("description", None)  # the model's docstring, which speaks to readers of the source
    tidied.setdefault("properties", {})
    return tidied


_FIRST: Final = ("type", "description", "properties", "required", "additionalProperties")


def _without_title(part: dict[str, Any]) -> dict[str, Any]:
    order = [*(key for key in _FIRST if key in part), *(key for key in part if key not in _FIRST)]
    return {key: part[key] for key in order if key != "title"}


def _word(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "|".join(str(each) for each in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if "anyOf" in schema:
        return "|".join(_word(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"{_word(schema.get('items', {}))}[]"
    return str(schema.get("type", "any"))


# What OpenAI's strict dialect does not know.
_UNKNOWN_TO_STRICT: Final = frozenset({"default", "minLength", "maxLength", "title"})


def _all_required(schema: Mapping[str, Any]) -> dict[str, Any]:
    required = set(schema.get("required", ()))
    properties = {}
    for name, each in schema["properties"].items():
        plain = {key: value for key, value in each.items() if key not in _UNKNOWN_TO_STRICT}
        if name not in required:
            plain = {**plain, "anyOf": [*plain["anyOf"], {"type": "null"}]} if "anyOf" in plain else _nullable(plain)
        properties[name] = plain
    return {**schema, "properties": properties, "required": list(properties), "additionalProperties": False}


def _nullable(schema: Mapping[str, Any]) -> dict[str, Any]:
    out = {**schema, "type": [schema["type"], "null"]}
    if "enum" in out:
        out["enum"] = [*out["enum"], None]
    return out
