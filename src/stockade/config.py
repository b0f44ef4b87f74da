"""Where Stockade keeps things and how it enters cgroups: settings of the operator, passed in, read from the environment in one place."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class CgroupEntry(StrEnum):
    """How a job enters its cgroup."""

    AUTO = "auto"  # CLONE_INTO_CGROUP where a self-test shows that it works, else by cgroup.procs
    JOIN = "join"  # always by cgroup.procs


class Config(BaseModel):
    """Settings of one executor."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state_dir: str | None = None  # registry and bank; None: a private temporary directory that goes with the executor
    cgroup: str | None = None  # directory of the cgroup below which ours is made; None: found
    cgroup_entry: CgroupEntry = CgroupEntry.AUTO
    standby: bool = True  # keep one sandbox built ahead, of the shape that was used last
    max_jobs: Annotated[int, Field(gt=0, le=4096)] = 64  # running at once
    host_path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # only to say where a missing program is


def from_environment(**overrides: object) -> Config:
    """The settings that STOCKADE_STATE_DIR and STOCKADE_CGROUP give, with `overrides` on top."""
    names = {"state_dir": "STOCKADE_STATE_DIR", "cgroup": "STOCKADE_CGROUP", "host_path": "PATH"}
    found = {field: os.environ[name] for field, name in names.items() if os.environ.get(name)}  # noqa: TID251 - the one reader
    return Config.model_validate({**found, **overrides})


def caller_environment() -> dict[str, str]:
    """The environment of this process, for policies that pass parts of it on."""
    return dict(os.environ)  # noqa: TID251 - the one reader
