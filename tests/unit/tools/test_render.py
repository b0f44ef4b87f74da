"""What is shown of untrusted text, and how quantities are written."""

from __future__ import annotations

import pytest

from stockade.tools.render import age, printable, size, table


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
