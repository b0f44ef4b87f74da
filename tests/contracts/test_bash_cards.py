"""What a host may show of a bash call and of its result (1B.4; DT-49 to DT-60)."""

from __future__ import annotations

import pytest

from stockade.tools.bash_text import Card, call_card, result_card, result_text
from support.bash import result_of

CALL = {"command": "make", "description": "Build it", "workdir": "src/../src"}


def text(content: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}]


@pytest.mark.case("DT-49", "DT-50")
def test_a_foreground_call_is_a_terminal_with_its_directory_as_given() -> None:
    assert call_card("bash", CALL) == Card(kind="terminal", title="Build it", command="make", cwd="src/../src")
    card = result_card("bash", CALL, text("raw \x1b[31moutput\n"))
    assert card == Card(kind="terminal", title="Build it", command="make", cwd="src/../src", output="raw \x1b[31moutput\n", exit_code=0)


@pytest.mark.case("DT-51", "DT-52", "DT-53")
def test_the_last_line_says_how_it_ended() -> None:
    for result, code, signal in (
        (result_of("out", exit_code=3), 3, None),
        (result_of("out\n", exit_code=None, signal="SIGTERM"), None, "SIGTERM"),
        (result_of(timed_out=True, exit_code=None, signal="SIGKILL"), None, "SIGKILL"),
        (result_of("out"), 0, None),
    ):
        card = result_card("bash", CALL, text(result_text(result)))
        assert card is not None
        assert (card.exit_code, card.signal) == (code, signal)


@pytest.mark.case("DT-54")
def test_output_that_looks_like_a_marker_is_none() -> None:
    for output in ("[exit code: 3]", "so [exit code: 3]", "\n[exit code: 3]\nmore", "\n[exit code: 3] "):
        card = result_card("bash", CALL, text(output))
        assert card is not None
        assert (card.exit_code, card.signal) == (0, None)


@pytest.mark.case("DT-55", "DT-56")
def test_a_background_call_and_an_error_have_no_end_to_show() -> None:
    background = {**CALL, "run_in_background": True}
    assert call_card("bash", background) == Card(kind="generic", title="Build it")
    started = text("started background task bash-1\n[exit code: 1]")
    assert result_card("bash", background, started) == Card(kind="generic", title="Build it", output=started[0]["text"])
    assert result_card("bash", CALL, text("refused"), is_error=True) == Card(kind="generic", title="Build it", output="refused")


@pytest.mark.case("DT-57")
@pytest.mark.parametrize("blocks", [[], text("a") * 2, [{"type": "image"}], [{"type": "text", "text": 5}], "text", None, [None]])
def test_what_is_not_one_text_is_not_shown(blocks: object) -> None:
    assert result_card("bash", CALL, blocks) is None


@pytest.mark.case("DT-58", "DT-59")
def test_reads_and_kills_are_titled_by_their_task() -> None:
    assert call_card("bash_output", {"task_id": "bash-1"}) == Card(kind="generic", title="Read output of bash-1")
    assert call_card("bash_kill", {"task_id": "bash-1"}) == Card(kind="generic", title="Kill bash-1")


@pytest.mark.case("DT-60")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bash", None),
        ("bash", {"command": "make"}),
        ("bash", {"command": 5, "description": "d"}),
        ("bash", {"command": "make", "description": " "}),
        ("bash_output", {}),
        ("bash_kill", {"task_id": 5}),
        ("another", CALL),
    ],
)
def test_misshapen_calls_have_no_card(name: str, arguments: object) -> None:
    assert call_card(name, arguments) is None
    assert result_card(name, arguments, text("output")) is None
