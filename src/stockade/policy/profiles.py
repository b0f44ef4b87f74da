"""Policies by name: starting points that a host takes as they are or fills in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from stockade.errors import PolicyError
from stockade.policy.checks import unknown_name
from stockade.policy.model import Limits, Policy
from stockade.policy.quantities import shown
from stockade.sandbox.spec import GiB, MiB

DEFAULT = "untrusted"

PROFILES: Mapping[str, Policy] = MappingProxyType(
    {
        # Code that nobody has read: two minutes, half a gibibyte.
        "untrusted": Policy(),
        # Compilers and test suites: they fork widely, write much to /tmp and take their time.
        "build": Policy(
            limits=Limits(
                wall_time=1800.0,
                memory=4 * GiB,
                processes=2048,
                output=64 * MiB,
                open_files=8192,
                tmp_size=2 * GiB,
                tmp_inodes=262_144,
                home_size=1 * GiB,
                home_inodes=262_144,
                shm_size=256 * MiB,
            )
        ),
        # Debuggers and tracers: ptrace among the job's own processes.
        "debug": Policy(seccomp="debug"),
    }
)


def profile(name: str, /, **changes: Any) -> Policy:
    """The policy of this name with some fields replaced; `limits` as a mapping changes the limits that it names.

    Raises: PolicyError for an unknown name or a wrong field.
    """
    if not isinstance(name, str):
        raise PolicyError(f"profile: {shown(name)} is not a name", field="profile", hint=f"known: {', '.join(PROFILES)}")
    if name not in PROFILES:
        raise unknown_name(PolicyError, "profile", name, PROFILES, field="profile")
    return PROFILES[name].replace(**changes)
