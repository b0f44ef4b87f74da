"""Stockade runs commands nobody trusts on Linux: sealed by the kernel, killable to the last descendant, fully recorded.

The public names are loaded on first use: the fork server imports `stockade.sandbox` and must not pay for pydantic or asyncio.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stockade.executor import Executor, run
    from stockade.jobs.handle import Job
    from stockade.jobs.results import Result
    from stockade.policy.command import Command, Terminal
    from stockade.policy.model import Limits, Network, Policy
    from stockade.policy.profiles import profile

_HOMES = {
    "Command": "stockade.policy.command",
    "Executor": "stockade.executor",
    "Job": "stockade.jobs.handle",
    "Limits": "stockade.policy.model",
    "Network": "stockade.policy.model",
    "Policy": "stockade.policy.model",
    "Result": "stockade.jobs.results",
    "Terminal": "stockade.policy.command",
    "profile": "stockade.policy.profiles",
    "run": "stockade.executor",
}

__all__ = ["Command", "Executor", "Job", "Limits", "Network", "Policy", "Result", "Terminal", "profile", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stockade' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
