"""What is shown of untrusted text, and how quantities are written."""

from __future__ import annotations

import pytest

from stockade.ids import InstanceId, JobId
from stockade.jobs.records import JobRecord, Usage
from stockade.jobs.states import JobState
from stockade.launcher.outcome import Exited
from stockade.tools.cli.render import age, printable, record_lines, size, table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünicode 漢字", "plain, ünicode 漢字"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("two\nlines\t.", "two\\nlines\\t."),
        ("\udcff", "\\udcff"),
        ("\u202eright to left", "\\u202eright to left"),
    ],
)
def test_nothing_that_a_terminal_acts_on_gets_through(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_ages_and_sizes_are_written_in_the_largest_unit_that_fits() -> None:
    assert [age(seconds) for seconds in (-1, 0.5, 59, 61, 7200, 200_000)] == ["0s", "0s", "59s", "1m", "2h", "2d"]
    assert [size(count) for count in (0, 1, 1023, 1536, 3 << 20, 5 << 30)] == [
        "0 bytes",
        "1 byte",
        "1023 bytes",
        "1.5 KiB",
        "3 MiB",
        "5 GiB",
    ]


def test_a_table_is_not_cut_where_there_is_no_terminal() -> None:
    long = "x" * 500
    assert table(("A", "B"), [("1", long), ("\x1b[1m", "[bold]2")]) == f"A        B\n1        {long}\n\\x1b[1m  [bold]2\n"


def test_what_a_job_used_is_shown_where_it_is_known_and_not_nothing() -> None:
    usage = Usage(
        wall=3.0,
        frozen=1.0,
        peak_sampled=3 << 20,
        output_lines={"stdout": 2, "stderr": 0},
        tmpfs_bytes={"/tmp": 4096, "/home/job": 0},
        pressure={"cpu.some": 0.25, "io.full": 0.0},
    )
    record = JobRecord(
        id=JobId("abc"),
        instance=InstanceId("life"),
        argv=("true",),
        state=JobState.FINISHED,
        outcome=Exited(0),
        created_at=1.0,
        started_at=1.0,
        ended_at=4.0,
        usage=usage,
        notes=("/tmp was full: 4 KiB",),
    )
    lines = {line[:15].rstrip(): line[16:] for line in record_lines(record, record.sentence())}
    assert (
        lines.items()
        >= {
            "frozen": "1.00s",
            "sampled memory": "3 MiB",
            "lines": "stdout 2",
            "held at the end": "/tmp 4 KiB",
            "pressure": "cpu.some 0.250s",
            "note": "/tmp was full: 4 KiB",
        }.items()
    )
    assert not {"throttled", "peak memory", "io"} & lines.keys()
