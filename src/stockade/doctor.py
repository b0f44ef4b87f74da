"""Whether this host can seal jobs: every primitive tried for real, the cause of each failure with its fix, and a verdict.

The trials are run by `sandbox.features` in a program of its own; at the end one command is run sealed, as any job is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from stockade.config import Config
from stockade.errors import HostUnfit, LaunchFailed, StockadeError
from stockade.executor import Executor
from stockade.launcher import host, spawn
from stockade.launcher.idslots import FIRST_ID, LOCK_DIRECTORY, SLOT_SIZE, IdSlots, caller_map, range_map
from stockade.policy.model import Policy
from stockade.sandbox import delegation, features, hostfacts, syscall_tables
from stockade.sandbox.causes import Failure, cause_of, refused_cgroup
from stockade.sandbox.hostfacts import Facts
from stockade.sandbox.spec import JOB_GID, JOB_UID, Identity
from stockade.sandbox.trial import Setting

PROBES_BOUND: Final = 120.0  # seconds for all trials; each of them is bounded by itself
JOB_BOUND: Final = 60.0  # seconds for the sealed command
_SHOWN: Final = 3  # causes that the verdict repeats
_ARCHITECTURES: Final = {"x86_64": syscall_tables.X86_64, "aarch64": syscall_tables.AARCH64}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `ok` is None where there was nothing to try here; a failure has a cause and a fix."""

    name: str
    ok: bool | None
    detail: str
    cause: str | None = None
    fix: str | None = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found, in the order in which it was tried."""

    kernel: str
    checks: tuple[Check, ...]

    @property
    def fit(self) -> bool:
        """True where no required check failed and the sealed command ran."""
        return not self.failed and any(check.name == "sealed job" and check.ok for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The required checks that failed."""
        return tuple(check for check in self.checks if check.required and check.ok is False)

    @property
    def verdict(self) -> str:
        """One sentence."""
        weak = [check.name for check in self.checks if not check.required and check.ok is False]
        if self.fit:
            count = sum(check.required and check.ok is True for check in self.checks)
            lacking = f"; lacking, and not required: {', '.join(weak)}" if weak else ""
            return f"fit: {count} required checks passed, and a sealed command ran{lacking}"
        causes = tuple(dict.fromkeys(check.cause for check in self.failed if check.cause is not None))
        more = f"; and {len(causes) - _SHOWN} more" if len(causes) > _SHOWN else ""
        return f"unfit: {len(self.failed)} required checks failed: {'; '.join(causes[:_SHOWN])}{more}"

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "fit": self.fit,
            "verdict": self.verdict,
            "kernel": self.kernel,
            "checks": [asdict(check) for check in self.checks],
        }


async def examine(config: Config) -> Report:
    """Looks at this host with the settings of an executor; nothing stays behind but, in a delegated cgroup, our place in it.

    Raises: nothing that a host could be the cause of.
    """
    facts = await asyncio.to_thread(hostfacts.collect)
    checks = await asyncio.to_thread(_look, config, facts)
    checks.append(await _sealed_job(config, facts))
    return Report(f"{facts.release} {facts.machine}", tuple(checks))


def _look(config: Config, facts: Facts) -> list[Check]:
    checks = [_architecture(facts), _security_modules(facts)]
    identity, check = _identity()
    checks.append(check)
    base, check = _cgroup_base(config, facts, is_root=identity is Identity.RANGE)
    checks.append(check)
    with _slot(identity, checks) as slot:
        setting = Setting(
            has_range=slot is not None,
            uid_map=caller_map(JOB_UID, os.geteuid()) if slot is None else range_map(slot),
            gid_map=caller_map(JOB_GID, os.getegid()) if slot is None else range_map(slot),
            directory=tempfile.gettempdir(),
            cgroup=base,
        )
        checks += _probe(setting, facts)
    return checks


def _architecture(facts: Facts) -> Check:
    if facts.machine in _ARCHITECTURES:
        return Check("architecture", True, facts.machine)
    return Check(
        "architecture",
        False,
        facts.machine,
        f"there are no system call tables for {facts.machine}",
        f"use one of {', '.join(_ARCHITECTURES)}",
    )


def _security_modules(facts: Facts) -> Check:
    """Those that decide about what sandboxes are made of, by name; nothing is wrong with having any of them, or none."""
    name = "security.modules"
    if not facts.security_modules:
        return Check(name, None, "the kernel names none, or /sys/kernel/security is not mounted", required=False)
    notes = {
        "apparmor": f"confines us by {facts.apparmor_profile!r}" if facts.apparmor_profile else "does not confine us",
        "yama": f"ptrace_scope {facts.ptrace_scope}",
    }
    told = (f"{each} ({notes[each]})" if each in notes else each for each in facts.security_modules)
    return Check(name, True, ", ".join(told), required=False)


def _identity() -> tuple[Identity | None, Check]:
    try:
        identity = host.find_identity()
    except HostUnfit as error:
        return None, _unfit("identity", error)
    if identity is Identity.RANGE:
        return identity, Check("identity", True, f"root: {SLOT_SIZE} host ids a job, from {FIRST_ID} on")
    return identity, Check("identity", True, f"uid {os.geteuid()}: jobs have this id outside")


def _cgroup_base(config: Config, facts: Facts, *, is_root: bool) -> tuple[str | None, Check]:
    """Where an executor's cgroup is made; moves us out of its way there, as an executor does."""
    name = "cgroup.base"
    try:
        base = delegation.choose_base(is_root=is_root, wanted=config.cgroup)
        delegation.step_aside(base)
    except HostUnfit as error:
        cause = refused_cgroup(error, facts)
        return None, Check(name, False, error.message, cause.text, cause.fix)
    except OSError as error:
        failure = Failure("write", "cgroup.procs", error.errno)
        cause = cause_of(failure, facts)
        return None, Check(name, False, failure.describe(), cause.text, cause.fix)
    return base, Check(name, True, base)


@contextlib.contextmanager
def _slot(identity: Identity | None, checks: list[Check]) -> Iterator[int | None]:
    """A range of host ids that no job has meanwhile; None where there is none, for which the reason is added to `checks`."""
    name = "identity.slots"
    if identity is not Identity.RANGE:
        checks.append(Check(name, None, "only root hands out host ids"))
        yield None
        return
    try:
        slots = IdSlots()
    except HostUnfit as error:
        checks.append(_unfit(name, error))
        yield None
        return
    try:
        slot = slots.take()
    except StockadeError as error:
        slots.close()
        checks.append(_unfit(name, error))
        yield None
        return
    try:
        checks.append(Check(name, True, f"a range was locked in {LOCK_DIRECTORY}"))
        yield slot
    finally:
        slots.give_back(slot)
        slots.close()


def _probe(setting: Setting, facts: Facts) -> list[Check]:
    """Runs the probe program."""
    try:
        done = spawn.run_isolated("stockade.sandbox.features", features.encode_setting(setting), bound=PROBES_BOUND)
    except HostUnfit as error:
        return [_unfit("probes", error)]
    return read_findings(done.returncode, done.stdout, done.stderr, facts)


def read_findings(status: int, stdout: bytes, stderr: bytes, facts: Facts) -> list[Check]:
    """What the probe program printed, as checks; where it ended early, one more that says at which probe and how."""
    lines = stdout.split(b"\n")[:-1]  # what follows the last newline is half a finding
    checks = [Check(**json.loads(line)) for line in lines]
    if status == 0 and len(checks) == len(features.PROBES):
        return checks
    at = features.PROBES[len(checks)].name if len(checks) < len(features.PROBES) else "its end"
    said = stderr.decode(errors="replace").strip().splitlines()[-1:]
    how = f"signal {-status}" if status < 0 else f"status {status}"
    detail = f"the probe program ended with {how} at {at}" + "".join(f": {line[:300]}" for line in said)
    failure = Failure(at, signal=-status) if status < 0 else Failure(at, seen=detail)
    cause = cause_of(failure, facts)
    return [*checks, Check("probes", False, detail, cause.text, cause.fix)]


async def _sealed_job(config: Config, facts: Facts) -> Check:
    """One command, sealed like any job, in an executor whose state goes with it."""
    name = "sealed job"
    ours = config.model_copy(update={"state_dir": None, "standby": False})
    begin = time.monotonic()
    try:
        async with asyncio.timeout(JOB_BOUND):
            async with Executor(Policy(), config=ours, environment={}) as executor:
                opened = time.monotonic()
                result = await executor.run(["true"])
                ended = time.monotonic()
    except StockadeError as error:
        return _explained(_unfit(name, error), error, facts)
    except TimeoutError:
        seen = f"it took more than {JOB_BOUND:g} s"
        return Check(name, False, seen, f"unknown: {seen}", "look at the load of this host, then try again")
    except OSError as error:
        path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
        failure = Failure(getattr(error, "call", None) or "a system call", path, error.errno)
        cause = cause_of(failure, facts)
        return Check(name, False, failure.describe(), cause.text, cause.fix)
    if not result.ok:
        seen = f"true ended as {result.outcome}"
        return Check(name, False, seen, f"unknown: {seen}", "report this with the output of `stockade doctor --json`")
    return Check(
        name,
        True,
        f"true ran in {(ended - opened) * 1000:.1f} ms, after {(opened - begin) * 1000:.0f} ms to open an executor",
    )


def _unfit(name: str, error: StockadeError) -> Check:
    return Check(name, False, error.message, error.message, error.hint or "see the checks that failed before")


def _explained(check: Check, error: StockadeError, facts: Facts) -> Check:
    """With the cause of the step that the kernel refused, or of the cgroup that cannot be made, where it is known."""
    if isinstance(error, HostUnfit) and error.feature == "cgroup.delegation":
        cause = refused_cgroup(error, facts)
        return replace(check, cause=cause.text, fix=cause.fix)
    if not isinstance(error, LaunchFailed) or error.errno is None:
        return check
    cause = cause_of(Failure(error.call, error.path, error.errno), facts)
    return replace(check, cause=cause.text, fix=cause.fix)


__all__ = ["Check", "Report", "examine"]
