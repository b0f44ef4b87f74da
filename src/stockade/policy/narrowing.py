"""The order of every field of a policy: which value is tighter than which.

A caller, or a model behind one, may move down these orders and never up. Paths are compared as text: a directory below
a granted one is no narrower grant, because a job can make it a link to anywhere; and a read-only path shields part of a
writable one only where both are named without links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stockade.errors import NotAllowed
from stockade.policy.checks import is_within, listed
from stockade.policy.model import SECCOMP_PROFILES, Limits, Network, Overflow, Policy, cpu_numbers, io_caps
from stockade.policy.quantities import format_bytes, format_count, format_cpus, format_seconds, shown
from stockade.sandbox.spec import Access

_DEFAULT_WEIGHT = 100  # of cpu.weight


@dataclass(frozen=True, slots=True)
class Order:
    """One field's order: is the first value within the second, what would be, in words, and how a value is written."""

    within: Callable[[Any, Any], bool]
    accepted: Callable[[Any], str]
    show: Callable[[Any], str] = str


def _at_most(show: Callable[[Any], str]) -> Order:
    return Order(
        within=lambda new, old: old is None or (new is not None and new <= old),
        accepted=lambda old: f"at most {show(old)}",
        show=show,
    )


def _weight_within(new: int | None, old: int | None) -> bool:
    # What is not set has the kernel's default weight, which is not the largest.
    return (_DEFAULT_WEIGHT if new is None else new) <= (_DEFAULT_WEIGHT if old is None else old)


def _ladder(steps: tuple[str, ...]) -> Order:
    def within(new: str, old: str) -> bool:
        return new == old or (new in steps and old in steps and steps.index(new) < steps.index(old))

    return Order(within, lambda old: listed(steps[: steps.index(old) + 1] if old in steps else (old,)))


def _names_within(new: tuple[str, ...] | None, old: tuple[str, ...] | None) -> bool:
    return old is None or (new is not None and set(new) <= set(old))


def _in_order_within(new: tuple[str, ...], old: tuple[str, ...]) -> bool:
    remaining = iter(old)
    return all(entry in remaining for entry in new)


def _inherited_within(new: bool | tuple[str, ...], old: bool | tuple[str, ...]) -> bool:
    match new, old:
        case (False, _):
            return True
        case (True, _) | (_, False):
            return new == old
        case (tuple(names), tuple(granted)):
            return set(names) <= set(granted)
        case _:
            # True passes over what looks like a secret, by name or by value; naming it would bring it in.
            return False


def _io_within(new: tuple[str, ...], old: tuple[str, ...]) -> bool:
    caps = io_caps(new)
    return all(key in caps and caps[key] <= cap for key, cap in io_caps(old).items())


_EQUAL = Order(lambda new, old: new == old, lambda old: f"only {old}")
_FREE = Order(lambda new, old: True, lambda old: "anything")
# Paths are ordered together, by what they let a job reach.
_REACH = Order(lambda new, old: True, lambda old: "the paths granted")

ORDERS: Mapping[str, Order] = {
    "workspace": Order(lambda new, old: new is None or new == old, lambda old: f"{old} or None"),
    "ro": _REACH,
    "rw": _REACH,
    "root": _EQUAL,
    "executables": Order(_names_within, lambda old: f"some of {listed(old)}"),
    "path": Order(_in_order_within, lambda old: f"some of {listed(old)}, in this order"),
    "env": Order(
        lambda new, old: all(old.get(name) == value for name, value in new.items()),
        lambda old: f"some of {listed(old)}, unchanged; what one command needs goes into its own env",
    ),
    "inherit_env": Order(
        _inherited_within,
        lambda old: f"some of {listed(old)}, or false" if isinstance(old, tuple) else "false",
    ),
    "network": _ladder((Network.NONE, Network.LOOPBACK)),
    "seccomp": _ladder(SECCOMP_PROFILES),
    "hostname": _FREE,  # a name without authority
    "limits": Order(lambda new, old: True, lambda old: "each limit at most as it is"),  # field by field, below
    "require": Order(lambda new, old: new >= old, lambda old: f"all of {listed(sorted(old))} and more"),
    "overflow": _ladder((Overflow.KILL, Overflow.KEEP_TAIL)),  # a job that is not killed lives longer
    "merge_streams": _FREE,  # where bytes go, each stream under the same cap
}

LIMIT_ORDERS: Mapping[str, Order] = {
    "wall_time": _at_most(format_seconds),
    "cpu_time": _at_most(format_seconds),
    "idle_time": _at_most(format_seconds),
    "count_frozen": Order(lambda new, old: new or not old, lambda old: "true"),  # time that is not counted is time to live
    "grace": _at_most(format_seconds),
    "memory": _at_most(format_bytes),
    "memory_high": _at_most(format_bytes),
    "memory_oom_group": Order(lambda new, old: new or not old, lambda old: "true"),  # what goes on lives longer
    "processes": _at_most(format_count),
    "cpus": _at_most(format_cpus),
    "cpu_weight": Order(_weight_within, lambda old: f"at most {_DEFAULT_WEIGHT if old is None else old}"),
    "cpuset": Order(
        lambda new, old: old is None or (new is not None and cpu_numbers(new) <= cpu_numbers(old)),
        lambda old: f"some of the CPUs {old}",
    ),
    "io": Order(_io_within, lambda old: f"at most {listed(old)}"),
    "output": _at_most(format_bytes),
    "open_files": _at_most(format_count),
    "file_size": _at_most(format_bytes),
    "tmp_size": _at_most(format_bytes),
    "tmp_inodes": _at_most(format_count),
    "home_size": _at_most(format_bytes),
    "home_inodes": _at_most(format_count),
    "shm_size": _at_most(format_bytes),
}


def check_narrower(new: Policy, old: Policy) -> None:
    """Refuse `new` where any of its fields is wider than in `old`.

    Raises: NotAllowed, with the field, what is in force and what would be accepted.
    """
    for name, order in ORDERS.items():
        _check(name, order, getattr(new, name), getattr(old, name))
    for name in Limits.model_fields:
        _check(f"limits.{name}", LIMIT_ORDERS[name], getattr(new.limits, name), getattr(old.limits, name))
    _check_shields(new, old)
    _check_reach(new, old)


def _check(field: str, order: Order, new: Any, old: Any) -> None:
    if not order.within(new, old):
        raise NotAllowed(
            f"{field}: {_named(new)} is wider than the policy's {_named(old)}, and a policy can only be narrowed",
            field=field,
            hint=f"give {order.accepted(old)}, or leave {field} out",
        )


def _named(value: Any) -> str:
    if isinstance(value, tuple | frozenset):
        return f"[{listed(sorted(value) if isinstance(value, frozenset) else value)}]"
    # Names only: the values may be secrets.
    return f"{{{listed(value)}}}" if isinstance(value, Mapping) else shown(value)


def _check_shields(new: Policy, old: Policy) -> None:
    # A variable that is set hides the caller's own of that name; without it the caller's would be inherited.
    for name in old.env:
        if name not in new.env and (new.inherit_env is True or (new.inherit_env and name in new.inherit_env)):
            raise NotAllowed(
                f"env: without {name} the caller's own {name} would be inherited",
                field="env",
                hint=f"keep {name} in env, or set inherit_env to false",
            )


def _granted(policy: Policy) -> dict[str, Access]:
    writable = policy.rw if policy.workspace is None else (policy.workspace, *policy.rw)
    return {**dict.fromkeys(policy.ro, Access.RO), **dict.fromkeys(writable, Access.RW)}


def _access(granted: Mapping[str, Access], path: str) -> Access | None:
    covering = [top for top in granted if is_within(path, top)]
    return granted[max(covering, key=len)] if covering else None


def _check_reach(new: Policy, old: Policy) -> None:
    wanted, granted = _granted(new), _granted(old)
    for path, access in wanted.items():
        if path not in granted:
            raise NotAllowed(
                f"{access}: {shown(path)} is not granted by the policy, which grants {listed(granted)}",
                field=str(access),
                hint="name some of the granted paths exactly, not directories below them",
            )
        if access is Access.RW and granted[path] is Access.RO:
            raise NotAllowed(
                f"rw: {shown(path)} is granted read-only by the policy, and a policy can only be narrowed",
                field="rw",
                hint=f"name {shown(path)} in ro, or leave it out",
            )
    # A read-only path inside a writable one is a shield; without it the inside is writable.
    for path, access in granted.items():
        if access is Access.RO and _access(wanted, path) is Access.RW:
            raise NotAllowed(
                f"ro: without {shown(path)} it would be writable as part of a directory around it",
                field="ro",
                hint=f"keep {shown(path)} in ro, or leave out the directory around it",
            )
