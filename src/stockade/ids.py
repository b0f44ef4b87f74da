"""Names for jobs, executors and artifacts: short, random, safe as a file and cgroup name."""

from __future__ import annotations

import re
import secrets
from typing import NewType

JobId = NewType("JobId", str)
InstanceId = NewType("InstanceId", str)

# Crockford's base 32 without vowels that could spell words: readable aloud, case does not matter.
_ALPHABET = "0123456789bcdfghjkmnpqrstvwxyz"
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}\Z")


def _token(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def new_job_id() -> JobId:
    """A fresh id of 8 characters (about 39 bits); the registry checks that it is unused."""
    return JobId(_token(8))


def new_instance_id() -> InstanceId:
    """A fresh id of one executor's life, 12 characters."""
    return InstanceId(_token(12))


def is_safe_id(text: str) -> bool:
    """True where `text` can be used as a file name: starts with a letter or digit, at most 128 of [A-Za-z0-9_-]."""
    return _JOB_ID.match(text) is not None
