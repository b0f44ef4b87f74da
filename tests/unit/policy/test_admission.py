from __future__ import annotations

import pytest

from stockade.errors import NotAllowed
from stockade.policy.admission import Admitted, admit
from stockade.policy.command import command
from stockade.policy.model import Limits, Policy

PLAIN = Policy(workspace="/w", executables=["git", "python3"])


def test_a_command_within_its_policy_is_admitted_as_it_is():
    wanted = command(["git", "status"])
    assert admit(PLAIN, wanted) == Admitted(PLAIN, wanted, "/w")


def test_without_an_allow_list_any_program_is_admitted():
    assert admit(Policy(), command(["anything"])).cwd == "/home/job"


@pytest.mark.parametrize("name", ["rm", "Git", "git ", " git", "/usr/bin/git", "./git", "git\n", "gi", "git/"])
def test_a_program_is_compared_exactly(name):
    with pytest.raises(NotAllowed, match=r"is not allowed\n.*permitted executables: git, python3; use one of those") as caught:
        admit(PLAIN, command([name]))
    assert caught.value.field == "argv"


def test_an_empty_allow_list_refuses_every_program_and_says_none():
    with pytest.raises(NotAllowed, match=r"executable 'git' is not allowed\n.*\(none\)"):
        admit(Policy(executables=[]), command(["git"]))


def test_a_long_name_is_quoted_in_part():
    with pytest.raises(NotAllowed) as caught:
        admit(PLAIN, command(["x" * 1000]))
    assert caught.value.message == f"executable '{'x' * 80}'… is not allowed"


@pytest.mark.parametrize("name", ["git status", "git|sh", "git;sh", "$SHELL", "`sh`"])
def test_a_command_line_in_one_entry_is_told_that_there_is_no_shell(name):
    with pytest.raises(NotAllowed, match="there is no shell: put the program alone in argv"):
        admit(PLAIN, command([name]))


@pytest.mark.parametrize(
    ("limit", "timeout", "effective"), [(120, None, 120), (120, 10, 10), (120, 120, 120), (None, None, None), (None, 10, 10)]
)
def test_a_timeout_becomes_the_wall_time_of_the_policy(limit, timeout, effective):
    policy = PLAIN.replace(limits={"wall_time": limit})
    wanted = command(["git"], timeout=timeout)
    assert admit(policy, wanted) == Admitted(policy.replace(limits={"wall_time": effective}), wanted, "/w")


def test_a_longer_timeout_is_refused_with_what_would_do():
    with pytest.raises(NotAllowed, match=r"121s is longer than the policy's 120s\nhint: give at most 120s") as caught:
        admit(Policy(limits=Limits(wall_time=120)), command(["ls"], timeout=121))
    assert caught.value.field == "timeout"


@pytest.mark.parametrize(
    ("cwd", "inside"),
    [
        (".", "/w"),
        ("src", "/w/src"),
        ("./src//a/", "/w/src/a"),
        ("src/../lib", "/w/src/../lib"),
        ("/w/src/", "/w/src"),
        ("/elsewhere", "/elsewhere"),
        ("/w/../etc", "/w/../etc"),
        ("/", "/"),
    ],
)
def test_a_working_directory_is_made_absolute_for_lookup_to_judge(cwd, inside):
    assert admit(PLAIN, command(["git"], cwd=cwd)).cwd == inside


@pytest.mark.parametrize("cwd", ["..", "../w-evil", "src/../..", "../../etc"])
def test_a_working_directory_that_leads_out_by_its_text_is_refused(cwd):
    with pytest.raises(NotAllowed, match="outside the permitted root '/w'\nhint: name a directory inside '/w'") as caught:
        admit(PLAIN, command(["git"], cwd=cwd))
    assert caught.value.field == "cwd"


def test_without_a_workspace_a_working_directory_is_relative_to_home():
    assert admit(Policy(), command(["ls"], cwd="sub")).cwd == "/home/job/sub"
