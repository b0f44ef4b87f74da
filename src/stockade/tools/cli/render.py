"""How records, plans and reports are shown to people and to programs.

What a job says of itself (arguments, labels) is untrusted text: control characters are shown, never sent to a terminal.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stockade.errors import StockadeError

if TYPE_CHECKING:
    from stockade.doctor import Check
    from stockade.executor import Result
    from stockade.jobs.records import JobRecord

V = TypeVar("V")
_AGES: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_SIZES: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_PINS: Final = frozenset({"device", "inode"})
_NARROW: Final = 20  # columns at least: in fewer a table would have no room for any text
_WIDE: Final = 100_000  # columns for whoever is no terminal: nothing is cut


def printable(text: str) -> str:
    """The text with everything that a terminal would act on written as an escape."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in text)


def as_json(value: object) -> str:
    """One JSON value on one line, in ASCII."""
    return json.dumps(value, default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def record_fields(record: JobRecord) -> dict[str, Any]:
    """A record for programs: all its fields, and how it ended in words."""
    return {**record.model_dump(), "sentence": record.sentence()}


def result_fields(result: Result, exit_code: int, *, with_base64: bool) -> dict[str, Any]:
    """A finished run for programs: its record, our exit code, and its output as text, with the exact bytes on request."""
    streams = {"stdout": result.stdout, "stderr": result.stderr}
    return {
        "exit_code": exit_code,
        **record_fields(result.record),
        **{name: _output_fields(data, with_base64=with_base64) for name, data in streams.items()},
    }


def _output_fields(data: bytes, *, with_base64: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"text": data.decode("utf-8", "replace"), "bytes": len(data)}
    return {**fields, "base64": base64.b64encode(data).decode()} if with_base64 else fields


def error_fields(error: StockadeError, exit_code: int) -> dict[str, Any]:
    """A run that never came to be, for programs."""
    return {"exit_code": exit_code, "error": {"code": error.code, "message": error.message, "hint": error.hint}}


def plan_fields(spec: Any) -> dict[str, Any]:
    """A compiled plan (`SandboxSpec`) for programs: its fields, and the lines that people see."""
    fields = {each.name: getattr(spec, each.name) for each in dataclasses.fields(spec)}
    mounts = [
        # Without what pins a path to what it was when it was looked at: that is for init to compare.
        {"kind": type(mount).__name__.lower()} | {name: value for name, value in dataclasses.asdict(mount).items() if name not in _PINS}
        for mount in spec.mounts
    ]
    return {
        **fields,
        "environment": dict(spec.environment),
        "mounts": mounts,
        "rlimits": {limit.name: limit.value for limit in spec.rlimits},
        "cgroup": dataclasses.asdict(spec.cgroup),
        "mechanisms": dict(spec.mechanisms),
        "lines": spec.describe(),
    }


def record_lines(record: JobRecord, standing: str) -> Iterable[str]:
    """A record for people: one line a fact, those left out that are not known."""
    usage = record.usage
    facts: list[tuple[str, str | None]] = [
        ("id", record.id),
        ("label", record.label),
        ("command", shlex.join(record.argv)),
        ("cwd", record.cwd),
        ("owner", record.owner),
        ("session", record.session),
        ("key", record.key),
        ("policy", record.policy),
        ("state", str(record.state)),
        ("ended", standing),
        ("hint", record.error.hint if record.error is not None else None),
        ("created at", _moment(record.created_at)),
        ("started at", _moment(record.started_at)),
        ("ended at", _moment(record.ended_at)),
        ("duration", _duration(record.duration)),
        ("cpu time", _both("user", _duration(usage.user), "system", _duration(usage.system))),
        ("throttled", _duration(usage.throttled)),
        ("frozen", _duration(usage.frozen or None)),
        ("peak memory", _size(usage.peak_memory)),
        ("sampled memory", _size(usage.peak_sampled)),
        ("peak processes", None if usage.peak_processes is None else str(usage.peak_processes)),
        ("io", _both("read", _size(usage.io_read), "written", _size(usage.io_written))),
        ("input", ("terminal" if record.tty else "pipe") if record.interactive else None),
        ("stdout", _size(record.stdout_bytes)),
        ("stderr", _size(record.stderr_bytes)),
        ("lines", _listed(usage.output_lines, str)),
        ("held at the end", _listed(usage.tmpfs_bytes, size)),
        ("pressure", _listed(usage.pressure, lambda seconds: f"{seconds:.3f}s")),
        *(("note", note) for note in record.notes),
        *(("reference", f"{name}: {as_json(value)}") for name, value in record.references.items()),
        *(("isolation", f"{layer}: {mechanism}") for layer, mechanism in record.isolation.items()),
    ]
    return (f"{name:<15} {printable(value)}" for name, value in facts if value is not None)


def jobs_table(records: Sequence[tuple[JobRecord, str]]) -> str:
    """Records with where they stand, one a line, under a head."""
    now = time.time()
    rows = [
        (record.id, standing, age(now - record.created_at), _duration(record.duration) or "", record.label or shlex.join(record.argv))
        for record, standing in records
    ]
    return table(("ID", "OUTCOME", "AGE", "DURATION", "LABEL"), rows)


def report_table(checks: Iterable[Check]) -> str:
    """The checks of a doctor's report: name, result, detail; below what is not there why, and the way out."""
    rows: list[tuple[str, ...]] = []
    for check in checks:
        failed = "FAILED" if check.required else "absent"
        rows.append((check.name, {True: "ok", False: failed, None: "not tried"}[check.ok], check.detail))
        rows += [("", word, text) for word, text in (("cause", check.cause), ("fix", check.fix)) if text and check.ok is not True]
    return table(("CHECK", "RESULT", "DETAIL"), rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that fit the terminal; in full where there is none."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    grid = Table(*head, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))
    width = max(_NARROW, shutil.get_terminal_size().columns) if terminal else _WIDE
    console = Console(file=sys.stdout, width=width, no_color=True, force_terminal=terminal, legacy_windows=False)
    with console.capture() as captured:
        console.print(grid)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def age(seconds: float) -> str:
    """About how long: the largest unit that fits."""
    for scale, unit in _AGES:
        if seconds >= scale:
            return f"{int(seconds // scale)}{unit}"
    return "0s"


def size(count: int) -> str:
    """Bytes in the largest unit that fits."""
    for scale, unit in _SIZES:
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} byte{'' if count == 1 else 's'}"


def _size(count: int | None) -> str | None:
    return None if count is None else size(count)


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.2f}s" if seconds < 100 else f"{seconds:.0f}s"


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))


def _listed(values: Mapping[str, V] | None, show: Callable[[V], str]) -> str | None:
    """What is not zero, by name."""
    return ", ".join(f"{name} {show(value)}" for name, value in (values or {}).items() if value) or None


def _both(first: str, one: str | None, second: str, other: str | None) -> str | None:
    known = [f"{name} {value}" for name, value in ((first, one), (second, other)) if value is not None]
    return ", ".join(known) or None
