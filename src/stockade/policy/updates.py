"""Limits of a job that runs, changed: which may be, and how far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stockade.errors import InvalidRequest, NotAllowed
from stockade.policy.checks import listed
from stockade.policy.model import Limits
from stockade.policy.narrowing import LIMIT_ORDERS

# A sandbox is built with these, and nobody outside can change them in processes and mounts that are there.
FIXED: Final = frozenset({"open_files", "file_size", "tmp_size", "tmp_inodes", "home_size", "home_inodes", "shm_size"})


def updated_limits(current: Limits, changes: Mapping[str, Any], granted: Limits | None) -> Limits:
    """`current` with `changes`, each of them within what holds now or within `granted` (None: only within what holds now).

    Raises: PolicyError for what is wrong in itself, InvalidRequest for what cannot be changed, NotAllowed for what would widen.
    """
    new = Limits.model_validate({**{name: getattr(current, name) for name in Limits.model_fields}, **changes})
    changeable = listed(name for name in Limits.model_fields if name not in FIXED)
    if not changes:
        raise InvalidRequest("no limit is given", field="limits", hint=f"give some of {changeable}")
    for name in changes:
        if name in FIXED:
            raise InvalidRequest(
                f"{name}: a sandbox is built with it, and it cannot be changed while the job runs",
                field=name,
                hint=f"start the job with another {name}; these can be changed: {changeable}",
            )
        order, wanted, holds = LIMIT_ORDERS[name], getattr(new, name), getattr(current, name)
        if order.within(wanted, holds) or (granted is not None and order.within(wanted, getattr(granted, name))):
            continue
        widest = holds if granted is None or order.within(getattr(granted, name), holds) else getattr(granted, name)
        raise NotAllowed(
            f"{name}: {_written(name, wanted)} is wider than {_written(name, holds)}, which holds, and a job's limits can only be tightened"
            + ("" if granted is None else " beyond the executor's policy"),
            field=name,
            hint=f"give {order.accepted(widest)}",
        )
    return new


def described(old: Limits, new: Limits) -> str:
    """What differs, in words: `memory 512M → 256M, …`."""
    return ", ".join(
        f"{name} {_written(name, getattr(old, name))} → {_written(name, getattr(new, name))}"
        for name in Limits.model_fields
        if getattr(old, name) != getattr(new, name)
    )


def _written(name: str, value: Any) -> str:
    """A limit's value as a policy file would have it."""
    return "none" if value in (None, ()) else listed(value) if isinstance(value, tuple) else LIMIT_ORDERS[name].show(value)
