from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stockade.errors import InvalidRequest
from stockade.policy.command import ARG_MAX, MAX_ARG_STRLEN, Command, check_exec_size, command


def test_a_command_is_its_parts():
    assert command(["ls", "-l"], cwd=Path("src"), env={"A": "1"}, stdin=b"x", timeout="5m", label=" all\nfiles ").model_dump() == {
        "argv": ("ls", "-l"),
        "cwd": "src",
        "env": {"A": "1"},
        "stdin": b"x",
        "interactive": False,
        "tty": None,
        "replace_env": False,
        "timeout": 300.0,
        "label": "all files",
    }


def test_bytes_that_are_no_text_pass_as_surrogates():
    argument = os.fsdecode(b"\xff\xfe.txt")
    assert command(["ls", argument]).argv == ("ls", argument)


def test_shell_characters_are_plain_data():
    entries = ("echo", "a; b | c > d\n$HOME `x` 'q'")
    assert command(list(entries)).argv == entries


ONE_ENTRY = "one entry per argument"


@pytest.mark.parametrize(
    ("parts", "field", "way_out"),
    [
        ({"argv": "ls -l"}, "argv", ONE_ENTRY),
        ({"argv": b"ls"}, "argv", ONE_ENTRY),
        ({"argv": []}, "argv", ONE_ENTRY),
        ({"argv": {"ls"}}, "argv", ONE_ENTRY),
        ({"argv": None}, "argv", ONE_ENTRY),
        ({"argv": [""]}, "argv", "names the program"),
        ({"argv": ["ls", 1]}, "argv", "every entry must be a str"),
        ({"argv": ["ls", None]}, "argv", "every entry must be a str"),
        ({"argv": ["ls", b"x"]}, "argv", "every entry must be a str"),
        ({"argv": ["ls", "a\0b"]}, "argv", "remove it and retry"),
        ({"argv": ["ls", "\ud800"]}, "argv", "os.fsdecode"),
        ({"argv": ["ls", "x" * MAX_ARG_STRLEN]}, "argv", "stdin or in a file"),
        ({"argv": ["ls"] + ["x" * 100_000] * 22}, "argv", "stdin or in a file"),
        ({"argv": ["ls"], "cwd": 1}, "cwd", "give a str"),
        ({"argv": ["ls"], "cwd": ""}, "cwd", "name a directory"),
        ({"argv": ["ls"], "cwd": "a\0"}, "cwd", "remove it and retry"),
        ({"argv": ["ls"], "cwd": "a" * 5000}, "cwd", "shorten it"),
        ({"argv": ["ls"], "env": {"": "x"}}, "env", "not empty"),
        ({"argv": ["ls"], "env": {"A=B": "x"}}, "env", "no '='"),
        ({"argv": ["ls"], "env": {"A\0": "x"}}, "env", "remove it and retry"),
        ({"argv": ["ls"], "env": {"A": "x\0"}}, "env", "remove it and retry"),
        ({"argv": ["ls"], "env": {"A": 1}}, "env", "give a str"),
        ({"argv": ["ls"], "env": {1: "A"}}, "env", "give a str"),
        ({"argv": ["ls"], "env": ["A=1"]}, "env", "give names and values"),
        ({"argv": ["ls"], "env": {"A": "x" * MAX_ARG_STRLEN}}, "env", "stdin or in a file"),
        ({"argv": ["ls"], "stdin": "x"}, "stdin", ".encode()"),
        ({"argv": ["ls"], "stdin": 1}, "stdin", "give bytes"),
        ({"argv": ["ls"], "replace_env": 1}, "replace_env", "true or false"),
        ({"argv": ["ls"], "timeout": True}, "timeout", "give seconds"),
        ({"argv": ["ls"], "timeout": 0}, "timeout", "give 0.001s to"),
        ({"argv": ["ls"], "timeout": -1.0}, "timeout", "give 0.001s to"),
        ({"argv": ["ls"], "timeout": math.nan}, "timeout", "give seconds"),
        ({"argv": ["ls"], "timeout": math.inf}, "timeout", "give seconds"),
        ({"argv": ["ls"], "timeout": "10"}, "timeout", "write '10s'"),
        ({"argv": ["ls"], "timeout": 10**10}, "timeout", "give 0.001s to"),
        ({"argv": ["ls"], "label": 1}, "label", "give a str"),
        ({"argv": ["ls"], "timeuot": 1}, "timeuot", "did you mean 'timeout'"),
        ({}, "argv", "is required"),
    ],
)
def test_what_is_wrong_is_refused_by_field_with_the_way_out(parts, field, way_out):
    with pytest.raises(InvalidRequest) as caught:
        Command(**parts)
    assert caught.value.field == field
    assert way_out in str(caught.value)
    assert caught.value.__context__ is None


@given(
    st.dictionaries(
        st.sampled_from(["argv", "cwd", "env", "stdin", "replace_env", "timeout", "label"]),
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.text()), st.lists(st.none())),
    )
)
def test_callers_never_see_a_validation_error(parts):
    try:
        Command(**parts)
    except ValidationError:
        raise AssertionError("a pydantic error came out") from None
    except InvalidRequest:
        pass


def test_a_string_of_exactly_the_kernels_limit_passes():
    check_exec_size(["x" * (MAX_ARG_STRLEN - 1)], {})


def test_the_sum_of_arguments_and_environment_is_what_counts():
    entry = "x" * 99_990
    with pytest.raises(InvalidRequest, match=f"more than {ARG_MAX} bytes") as caught:
        check_exec_size([entry] * 15, {f"V{number}": entry for number in range(10)})
    assert caught.value.field == "env"


@pytest.mark.parametrize(
    ("parts", "title"),
    [
        ({"argv": ["git", "status", "-s"]}, "git status"),
        ({"argv": ["ls"]}, "ls"),
        ({"argv": ["ls"], "label": "  look "}, "look"),
        ({"argv": ["ls"], "label": "  "}, "ls"),
        ({"argv": [" "]}, "command"),
        ({"argv": ["x" * 61]}, "x" * 60 + "…"),
        ({"argv": ["ls"], "label": "x" * 61}, "x" * 60 + "…"),
    ],
)
def test_the_title_is_the_label_or_the_beginning_of_argv(parts, title):
    assert Command(**parts).title == title


def test_a_command_cannot_be_changed_and_can_be_a_key():
    first, second = command(["ls"], env={"B": "2", "A": "1"}), command(["ls"], env={"A": "1", "B": "2"})
    assert {first: 1}[second] == 1
    with pytest.raises(ValidationError, match="frozen"):
        first.argv = ("rm",)


def test_the_repr_of_an_environment_keeps_its_values_to_itself():
    assert "hunter2" not in repr(command(["ls"], env={"PASSWORD": "hunter2"}))
