"""What callers of the library may pass, checked before anything happens: each refusal names the argument and the way out."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Collection
from typing import Any, Final

from stockade.bank.retention import Retention
from stockade.errors import InvalidRequest
from stockade.jobs.records import HOST
from stockade.jobs.states import JobState
from stockade.policy.model import Policy
from stockade.policy.quantities import shown

_FILTERS: Final = ("states", "owner", "session", "before")


def check_policy(value: object) -> None:
    """Raises: InvalidRequest where it is no policy."""
    if not isinstance(value, Policy):
        raise InvalidRequest(
            f"policy: {shown(value)} is no policy", field="policy", hint="give a stockade.Policy, such as profile('untrusted', workspace=…)"
        )


def check_abort(value: object) -> None:
    """Raises: InvalidRequest where it is neither an event nor None."""
    if value is not None and not isinstance(value, asyncio.Event):
        raise InvalidRequest(f"abort: {shown(value)} is no event", field="abort", hint="give an asyncio.Event and set it to end the job")


def check_start(owner: object, session: object, key: object, owner_limit: object) -> None:
    """Who starts and how often. Raises: InvalidRequest."""
    for field, value in (("owner", owner), ("session", session), ("key", key)):
        _check_text(field, value, hint="give a str, or leave it out")
    if key == "":
        raise InvalidRequest("key: is empty", field="key", hint="give a new text for each command, or leave it out")
    if owner_limit is not None:
        check_number("owner_limit", owner_limit, least=1)


def check_job(job_id: object, caller: object) -> None:
    """Whom and who asks. Raises: InvalidRequest."""
    if not isinstance(job_id, str):
        raise InvalidRequest(f"job: {shown(job_id)} is no id of a job", field="job", hint="give the `id` of a job, a str")
    if caller is not HOST:
        _check_text("caller", caller, hint="give an owner's token (a str), None, or HOST")


def check_name(field: str, value: object) -> None:
    """Raises: InvalidRequest where it is no str."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field}: {shown(value)} is no name", field=field, hint="give a str")


def check_number(field: str, value: object, *, least: int = 0) -> None:
    """A whole number. Raises: InvalidRequest."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidRequest(
            f"{field}: {shown(value)} is no whole number from {least} on", field=field, hint=f"give an int, {least} or more"
        )


def check_seconds(field: str, value: object) -> None:
    """A duration, or None for no bound. Raises: InvalidRequest."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) or value < 0:
        raise InvalidRequest(f"{field}: {shown(value)} is no duration", field=field, hint="give seconds, or None for no bound")


def signal_number(value: object) -> int:
    """The number of a signal that is given as one or by its name: 2, "SIGINT", "int". Raises: InvalidRequest."""
    if isinstance(value, str) and (name := "SIG" + value.upper().removeprefix("SIG")) in signal.Signals.__members__:
        return int(signal.Signals[name])
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 64:
        raise InvalidRequest(
            f"signal: {shown(value)} is no signal", field="signal", hint="give a number from 1 to 64, or a name such as SIGINT"
        )
    return int(value)


def check_list(caller: object, limit: object, filters: dict[str, Any]) -> None:
    """What a listing may be asked for. Raises: InvalidRequest."""
    check_job("", caller)
    check_number("limit", limit, least=1)
    for field, value in filters.items():
        if field not in _FILTERS:
            raise InvalidRequest(f"unknown filter {shown(field)}", field=field, hint=f"known: {', '.join(_FILTERS)}")
        if value is None:
            continue
        if field == "before":
            check_number(field, value)
        elif field != "states":
            _check_text(field, value, hint="give a str, or None for all")
        elif isinstance(value, str) or not isinstance(value, Collection) or not all(_is_state(state) for state in value):
            raise InvalidRequest(
                f"states: {shown(value)} is no set of states", field="states", hint=f"give a set of {', '.join(map(str, JobState))}"
            )


def check_retention(value: object) -> None:
    """What is to be kept. Raises: InvalidRequest."""
    if not isinstance(value, Retention):
        raise InvalidRequest(
            f"retention: {shown(value)} is no retention", field="retention", hint="give a Retention(max_age, max_count, max_bytes)"
        )
    check_seconds("max_age", value.max_age)
    for field, number in (("max_count", value.max_count), ("max_bytes", value.max_bytes)):
        if number is not None:
            check_number(field, number)


def _is_state(value: object) -> bool:
    return isinstance(value, str) and value in set(JobState)


def _check_text(field: str, value: object, *, hint: str) -> None:
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{field}: {shown(value)} is no text", field=field, hint=hint)
