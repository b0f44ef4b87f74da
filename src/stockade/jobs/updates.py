"""Limits of a job that runs, changed from outside: all that were asked for, or none.

Where the kernel's controller holds a limit, its file is written; what the executor itself watches it reads anew. What neither holds
cannot be changed: the resource limits of processes that run are theirs, and what nothing enforces is not promised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from stockade.errors import HostUnfit, InvalidRequest, PolicyError
from stockade.jobs.supervisor import LiveJob
from stockade.launcher.devices import resolve_io
from stockade.launcher.waiting import wait_done
from stockade.policy.compile import check_cpuset, leaf_limits, mechanisms_in_force, mechanisms_of
from stockade.policy.model import Limits
from stockade.policy.updates import described, updated_limits
from stockade.sandbox.limitfiles import LIMIT_OF_FILE

# limit -> (the controller without which nobody can change it while a job runs, what holds it instead)
_NEEDS: Final = {
    "memory_high": ("memory", "nothing enforces it"),
    "memory_oom_group": ("memory", "a job over its sampled memory is always killed whole"),
    "processes": ("pids", "RLIMIT_NPROC holds it, which cannot be changed from outside in processes that run"),
    "cpus": ("cpu", "nothing enforces it"),
    "cpu_weight": ("cpu", "nothing enforces it"),
    "cpuset": ("cpuset", "nothing enforces it"),
    "io": ("io", "nothing enforces it"),
}


async def update_limits(job: LiveJob, changes: Mapping[str, Any], granted: Limits | None) -> Limits:
    """Changes limits of a job, and gives those that hold now; `policy.updates` says which may be changed, and how far.

    Raises: InvalidRequest and its kin, HostUnfit where this host has no mechanism for it; nothing has changed then.
    """
    updating = asyncio.create_task(_update(job, changes, granted), name=f"stockade-update-{job.id}")
    if (cancelled := await wait_done(updating)) is not None:  # half of it must not be left
        raise cancelled
    return updating.result()


async def _update(job: LiveJob, changes: Mapping[str, Any], granted: Limits | None) -> Limits:
    updated_limits(job.budget.limits, changes, granted)  # what is wrong in itself need not wait
    async with job.budget.updating:
        await job.has_begun.wait()
        old = job.budget.limits
        new = updated_limits(old, changes, granted)
        _check_mechanisms(old, new, job.engine.tree.controllers)
        if job.tree is None or job.ending.cause is not None:
            raise _has_ended(job)
        isolation = await job.engine.call(_apply, job, old, new)
        job.set_limits(new, isolation)
        if new != old and job.tree is not None:
            job.engine.registry.note(job.id, f"limits changed after {time.monotonic() - job.began:.1f} s: {described(old, new)}")
        return new


def _check_mechanisms(old: Limits, new: Limits, controllers: frozenset[str]) -> None:
    for name, (controller, instead) in _NEEDS.items():
        if getattr(old, name) != getattr(new, name) and controller not in controllers:
            raise HostUnfit(
                f"{name} cannot be changed while the job runs: jobs' cgroups have no {controller} controller here, and {instead}",
                feature=f"{name}.cgroup",
                hint=f"start the job with another {name}, or delegate the {controller} controller to Stockade's cgroup",
            )


def _apply(job: LiveJob, old: Limits, new: Limits) -> dict[str, str]:
    """Writes what is written; gives what isolates the job then. Blocks."""
    host, tree, account = job.engine.host(job.policy.root), job.tree, job.account
    if tree is None or account is None:
        raise _has_ended(job)
    check_cpuset(new, host)
    before, after = (leaf_limits(limits, host, resolve_io(limits.io)) for limits in (old, new))
    try:
        tree.leaf.change(before, after)
        if new.output != old.output:
            try:
                account.set_cap(new.output)
            except InvalidRequest:
                tree.leaf.change(after, before)
                raise
    except OSError as error:
        if tree.is_dead:
            raise _has_ended(job) from None
        limit = LIMIT_OF_FILE.get(str(error.filename), "limits")
        raise PolicyError(
            f"{limit}: the kernel refused to write {error.filename}: {error.strerror}",
            field=limit,
            hint=f"give another value for {limit}, or leave it out",
        ) from None
    layers = {name: how for name, how in job.isolation.items() if name not in mechanisms_of(host)}
    return {**layers, **dict(mechanisms_in_force(new, host))}


def _has_ended(job: LiveJob) -> InvalidRequest:
    return InvalidRequest(f"job {job.id!r} has ended, or is being ended", field="job", hint="limits of a job can be changed while it runs")
