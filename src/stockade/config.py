"""Where Stockade keeps things and how it enters cgroups: settings of the operator, passed in, read from the environment in one place."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from stockade.errors import InvalidRequest


def _path(value: Any) -> Any:
    path = os.fsdecode(value) if isinstance(value, os.PathLike | bytes) else value
    if isinstance(path, str) and (not path or "\0" in path):
        raise ValueError("is empty: name a directory" if not path else "contains a NUL byte")
    return path


Path = Annotated[str | None, BeforeValidator(_path)]  # any os.PathLike is taken


class CgroupEntry(StrEnum):
    """How a job enters its cgroup."""

    AUTO = "auto"  # CLONE_INTO_CGROUP where a self-test shows that it works, else by cgroup.procs
    JOIN = "join"  # always by cgroup.procs


class Config(BaseModel):
    """Settings of one executor. Raises: InvalidRequest, with the field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state_dir: Path = None  # registry and bank; None: a private temporary directory that goes with the executor
    cgroup: Path = None  # directory of the cgroup below which ours is made; None: found
    cgroup_entry: CgroupEntry = CgroupEntry.AUTO
    standby: Annotated[bool, Strict()] = True  # keep one sandbox built ahead, of the shape that was used last
    max_jobs: Annotated[int, Field(gt=0, le=4096, strict=True)] = 64  # running at once
    host_path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # only to say where a missing program is

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_in_our_words(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"])) or "config"
            why = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"].lower()
            refused = InvalidRequest(f"{field}: {why}", field=field, hint=f"settings: {', '.join(cls.model_fields)}")
        # Outside the except block, so that the pydantic error is not carried along as context.
        raise refused


def from_environment(**overrides: object) -> Config:
    """The settings that STOCKADE_STATE_DIR and STOCKADE_CGROUP give, with `overrides` on top."""
    names = {"state_dir": "STOCKADE_STATE_DIR", "cgroup": "STOCKADE_CGROUP", "host_path": "PATH"}
    found = {field: os.environ[name] for field, name in names.items() if os.environ.get(name)}  # noqa: TID251 - the one reader
    return Config.model_validate({**found, **overrides})


def mcp_token() -> str | None:
    """The bearer token that STOCKADE_MCP_TOKEN gives."""
    return os.environ.get("STOCKADE_MCP_TOKEN") or None  # noqa: TID251 - the one reader


def caller_environment() -> dict[str, str]:
    """The environment of this process, for policies that pass parts of it on."""
    return dict(os.environ)  # noqa: TID251 - the one reader
