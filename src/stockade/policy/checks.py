"""What text, paths, names and environments must look like, and how a refusal becomes one of our errors.

The checks raise ValueError, which pydantic collects; `Strict` turns the first into the typed error that callers see.
Paths are compared as text here: what they lead to on the host is `launcher.lookup`'s to find.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import core_schema

from stockade.errors import InvalidRequest
from stockade.policy.quantities import shown
from stockade.sandbox.spec import JOB_HOME

# Inside, these are always the sandbox's own.
RESERVED = ("/proc", "/sys", "/dev")
PATH_MAX = 4096  # bytes, with the NUL: limits.h
_HOSTNAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z")


class Environment(Mapping[str, str]):
    """Variables as a value: sorted, immutable, hashable; equal to any mapping with the same items."""

    __slots__ = ("_variables",)

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = dict(sorted((variables or {}).items()))

    def __getitem__(self, name: str) -> str:
        return self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def __hash__(self) -> int:
        return hash(tuple(self._variables.items()))

    def __repr__(self) -> str:
        # The values may be secrets and reprs end up in logs.
        return f"Environment({', '.join(self._variables)})"


class Checked:
    """An annotation: the field holds what `check` makes of the input, a ValueError refuses it.

    Stricter than pydantic's own reading of the type, and it lets PEP 383 surrogates through, which pydantic's str does not.
    """

    def __init__(self, check: Callable[[Any], Any]) -> None:
        self._check = check

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._check,
            json_schema_input_schema=handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(_plain),
        )


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Environment) else value


class Strict(BaseModel):
    """A frozen value that refuses unknown fields; whatever is wrong with its input comes out as `refusal`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    refusal: ClassVar[type[InvalidRequest]] = InvalidRequest
    noun: ClassVar[str] = "request"

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_in_our_words(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            refused = _translate(cls, error)
        # Outside the except block, so that the pydantic error is not carried along as context.
        raise refused


def _translate(cls: type[Strict], error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or cls.noun
    match first["type"]:
        case "value_error":
            return cls.refusal(f"{field}: {first['ctx']['error']}", field=field)
        case "extra_forbidden":
            return unknown_name(cls.refusal, f"{cls.noun} field", field, cls.model_fields)
        case "missing":
            return cls.refusal(f"{field}: is required", field=field)
        case _:
            return cls.refusal(f"{field}: {first['msg'].lower()}", field=field, hint=f"fields: {listed(cls.model_fields)}")


def unknown_name(kind: type[InvalidRequest], what: str, name: str, known: Iterable[str], *, field: str | None = None) -> InvalidRequest:
    """The error for a name that is none of `known`, with the closest one that is."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    guess = f": did you mean {close[0]!r}?" if close else ""
    return kind(f"unknown {what} {shown(name)}{guess}", field=field or name, hint=f"known: {listed(names)}")


def listed(names: Iterable[object]) -> str:
    """The names separated by commas, or "(none)"."""
    return ", ".join(str(name) for name in names) or "(none)"


def text(value: Any) -> str:
    """A str that can be handed to the kernel: no NUL, and bytes can be made of it (PEP 383 surrogates are fine)."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text: give a str")
    if "\0" in value:
        raise ValueError(f"{shown(value)} contains a NUL byte, which the kernel cannot pass on: remove it and retry")
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        wrong = f"U+{ord(value[error.start]):04X}"
        raise ValueError(
            f"{shown(value)} contains {wrong}, which no bytes stand for: remove it, or decode bytes with os.fsdecode"
        ) from None
    return value


def texts(value: Any, *, what: str) -> tuple[str, ...]:
    """Several distinct texts from a list, tuple or set; one str by itself is refused."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable) or isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is not a list: give a list of {what}, even for one")
    entries = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
    return distinct([text(entry) for entry in entries])


def distinct(entries: list[str]) -> tuple[str, ...]:
    """The entries, none of them twice."""
    for position, entry in enumerate(entries):
        if entry in entries[:position]:
            raise ValueError(f"{shown(entry)} is named twice: name it once")
    return tuple(entries)


def absolute_path(value: Any) -> str:
    """An absolute path without needless slashes and dots; ".." is refused, since links give it another meaning."""
    path = text(os.fspath(value) if isinstance(value, os.PathLike) else value)
    if not path.startswith("/"):
        raise ValueError(f"{shown(path)} is not absolute: give the full path, starting with '/'")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"{shown(path)} contains '..', which links can lead elsewhere: give the path without it")
    if not parts:
        raise ValueError("'/' is the whole host: name the directories that are needed")
    plain = "/" + "/".join(parts)
    if len(os.fsencode(plain)) >= PATH_MAX:
        raise ValueError(f"{shown(plain)} is longer than {PATH_MAX - 1} bytes, the kernel's limit for a path: shorten it")
    return plain


def mountable_path(value: Any) -> str:
    """An absolute path that may appear inside a sandbox at the same place."""
    path = absolute_path(value)
    for place in RESERVED:
        if is_within(path, place):
            raise ValueError(f"{shown(path)} cannot be passed in: {place} is the sandbox's own; copy what is needed elsewhere")
    if path != JOB_HOME and is_within(JOB_HOME, path):
        raise ValueError(f"{shown(path)} cannot be passed in: it holds the job's own {JOB_HOME}; name directories below it")
    return path


def is_within(path: str, top: str) -> bool:
    """True where `path` is `top` or below it, as text."""
    return path == top or path.startswith(top.rstrip("/") + "/")


def variables(value: Any) -> Environment:
    """An environment: names are not empty and hold no "=", neither names nor values hold NUL."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is not a mapping: give names and values, such as {{'LANG': 'C'}}")
    for name, setting in value.items():
        variable_name(name)
        try:
            text(setting)
        except ValueError as error:
            raise ValueError(f"value of {shown(name)}: {error}") from None
    return Environment(value)


def variable_name(value: Any) -> str:
    """A name of an environment variable."""
    name = text(value)
    if not name or "=" in name:
        raise ValueError(f"{shown(name)} cannot name a variable: a name is not empty and holds no '='")
    return name


def host_name(value: Any) -> str:
    """One label of a host name (RFC 1123)."""
    name = text(value)
    if not _HOSTNAME.match(name):
        raise ValueError(f"{shown(name)} is not a host name: give 1 to 63 letters, digits and inner dashes")
    return name


def flag(value: Any) -> bool:
    """True or False and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not a flag: give true or false")
    return value


def one_of(value: Any, accepted: Iterable[str]) -> str:
    """One of the accepted words."""
    words = list(accepted)
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{shown(value)} is not known: give one of {listed(words)}")
    return value
