"""The features of this host, each tried for real: what `stockade doctor` runs as a program of its own.

It is started afresh, single-threaded, with nothing but the standard library and python-prctl, because every trial forks. It prints
one JSON object a line, a finding each, as soon as it is known: whatever ends the program, what was found before is told.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from stockade.sandbox import hostfacts, probes_cgroup, probes_mounts, probes_namespaces, probes_privileges
from stockade.sandbox.causes import Cause, Failure, cause_of
from stockade.sandbox.hostfacts import Facts
from stockade.sandbox.trial import Died, Explained, NoEffect, NotApplicable, Probe, Setting

PROBES: tuple[Probe, ...] = (
    *probes_privileges.PROBES,
    *probes_namespaces.PROBES,
    *probes_mounts.PROBES,
    *probes_cgroup.PROBES,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one trial. `ok` is None where there was nothing to try; a failure has a cause and a fix."""

    name: str
    ok: bool | None
    detail: str
    cause: str | None = None
    fix: str | None = None
    required: bool = True


def examine(probe: Probe, setting: Setting, facts: Callable[[], Facts] = hostfacts.collect) -> Finding:
    """Runs one probe and explains its failure by the facts of this host."""
    try:
        return Finding(probe.name, True, probe.run(setting), required=probe.required)
    except NotApplicable as why:
        return Finding(probe.name, None, str(why), required=probe.required)
    except Explained as why:
        return Finding(probe.name, False, why.detail, why.cause, why.fix, probe.required)
    except NoEffect as seen:
        failure = Failure(probe.name, seen=str(seen))
    except Died as death:
        failure = Failure(probe.name, signal=death.number)
    except OSError as error:
        path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
        failure = Failure(getattr(error, "call", None) or "a system call", path, error.errno)
    cause: Cause = cause_of(failure, facts())
    return Finding(probe.name, False, failure.describe(), cause.text, cause.fix, probe.required)


def examine_all(setting: Setting, probes: tuple[Probe, ...] = PROBES) -> Iterator[Finding]:
    """Every finding, in the order of the table."""
    for probe in probes:
        yield examine(probe, setting)


def encode_setting(setting: Setting) -> str:
    """A setting as the program's one argument."""
    return json.dumps(asdict(setting))


def decode_setting(text: str) -> Setting:
    """What `encode_setting` made."""
    fields: dict[str, Any] = json.loads(text)
    return Setting(**fields | {"uid_map": tuple(fields["uid_map"]), "gid_map": tuple(fields["gid_map"])})


def main() -> None:
    """Entry point: argv is the setting."""
    setting = decode_setting(sys.argv[1])
    os.umask(0o022)
    for finding in examine_all(setting):
        sys.stdout.write(json.dumps(asdict(finding)) + "\n")
        sys.stdout.flush()  # at once: what is buffered would be written again by every child
