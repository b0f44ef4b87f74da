"""Command lines for git, without git: whatever a model passes, values stay values and paths stay inside."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from stockade.errors import InvalidRequest, NotAllowed
from stockade.tools import git_arguments as arguments_of
from stockade.tools.git_arguments import GLOBAL_OPTIONS, SHOWING, command_line, reads_files
from stockade.tools.git_repository import resolve_path_within_root
from stockade.tools.schemas import Params

Build = Callable[[Any, Callable[[str], str]], list[str]]

TOOLS: tuple[tuple[type[Params], Build], ...] = (
    (arguments_of.LogParams, arguments_of.log_arguments),
    (arguments_of.ShowParams, arguments_of.show_arguments),
    (arguments_of.DiffParams, arguments_of.diff_arguments),
    (arguments_of.BlameParams, arguments_of.blame_arguments),
    (arguments_of.MergeBaseParams, arguments_of.merge_base_arguments),
    (arguments_of.LsFilesParams, arguments_of.ls_files_arguments),
)

# Every option that this code itself writes in front of "--", with its value where it has one of its own.
OWN_OPTIONS = {
    *GLOBAL_OPTIONS,
    "--no-ext-diff",
    "--no-textconv",
    "--ignore-submodules=dirty",
    "--submodule=short",
    "--oneline",
    "--format=fuller",
    "--format=medium",
    "--stat",
    "--name-only",
}
OWN_PREFIXES = ("--max-count=", "--since=", "--unified=", "-L")

hostile = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "--output=/tmp/x",
            "--output",
            "-O/etc/passwd",
            "--",
            "-",
            "--no-index",
            "--exec=id",
            "-c",
            "main",
            "HEAD~1",
            "a..b",
            "../..",
            "/etc",
        ]
    ),
    st.text(alphabet="-./~^:@{}a\0\n ;|&$", max_size=12),
)


def arguments_for(params: type[Params]) -> st.SearchStrategy[Params]:
    """Arguments as they pass the schema, with hostile text in every place for text."""
    values: dict[str, st.SearchStrategy[Any]] = {
        "max_count": st.integers(1, 500),
        "format": st.sampled_from(["oneline", "full", "stat", "name-only"]),
        "name_only": st.booleans(),
        "stat": st.booleans(),
        "unified": st.none() | st.integers(0, 50),
        "line_start": st.none() | st.integers(1, 1000),
        "line_end": st.none() | st.integers(1, 1000),
    }
    parts = {}
    for name, field in params.model_fields.items():
        text = hostile if field.is_required() else st.none() | hostile
        parts[field.alias or name] = values.get(name, text)
    return st.fixed_dictionaries(parts).map(params.model_validate)


calls = st.sampled_from(TOOLS).flatmap(lambda tool: st.tuples(st.just(tool[1]), arguments_for(tool[0])))


@given(calls)
def test_no_value_is_ever_an_option(call: tuple[Build, Params]) -> None:
    build, params = call
    try:
        argv = command_line("git", build(params, lambda path: path))
    except InvalidRequest:
        return
    before = argv[1 : argv.index("--")]
    strangers = [each for each in before if each.startswith("-") and each not in OWN_OPTIONS and not each.startswith(OWN_PREFIXES)]
    assert strangers == []
    assert [each for each in argv if "\0" in each] == []
    if argv[argv.index("--") - 1 :][0] != "merge-base":
        assert len(argv) - argv.index("--") <= 2  # one path at most
    else:
        assert [each for each in argv[argv.index("--") + 1 :] if each.startswith("-")] == []


@given(calls)
def test_what_can_show_a_change_starts_no_program(call: tuple[Build, Params]) -> None:
    build, params = call
    try:
        arguments = build(params, lambda path: path)
    except InvalidRequest:
        return
    argv = command_line("git", arguments)
    assert argv[: len(GLOBAL_OPTIONS) + 2] == ["git", *GLOBAL_OPTIONS, arguments[0]]
    assert ("--no-ext-diff" in argv and "--no-textconv" in argv) == (arguments[0] in SHOWING)


@given(st.from_regex(r"-[\w./=-]{0,40}", fullmatch=True))
def test_what_begins_with_a_dash_is_refused_for_that_reason(value: str) -> None:
    for params, build in TOOLS:
        for name in {"ref", "base", "head", "path"} & set(params.model_fields):
            filled = {each: "x" for each, field in params.model_fields.items() if field.is_required()} | {"base": "x"}
            known = {each: text for each, text in {**filled, name: value}.items() if each in params.model_fields}
            with pytest.raises(InvalidRequest, match="begins with '-'") as caught:
                build(params.model_validate(known, by_name=True, by_alias=True), lambda path: path)
            assert caught.value.field == name


def test_the_guards_cannot_be_undone_by_what_follows() -> None:
    """Git takes the last of two contrary options, so nothing a caller says may begin with a dash; the guards come first."""
    assert command_line("git", ["diff", "--stat", "main", "--"]) == [
        *("git", "--no-pager", "--literal-pathspecs"),
        *("-c", "color.ui=false", "-c", "diff.external=", "-c", "core.fsmonitor="),
        *("diff", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty", "--submodule=short", "--stat", "main", "--"),
    ]


@pytest.mark.parametrize(
    ("arguments", "reads"),
    [
        (["log", "--"], False),
        (["show", "HEAD", "--"], False),
        (["diff", "--"], True),
        (["diff", "--stat", "a", "--", "b"], True),
        (["diff", "a", "b", "--"], False),
        (["blame", "-L1,2", "--", "x"], True),
        (["blame", "HEAD", "--", "x"], False),
        (["merge-base", "--", "a", "b"], False),
        (["ls-files", "--"], False),
        (["status"], True),
    ],
)
def test_filters_are_looked_for_where_files_are_read(arguments: list[str], reads: bool) -> None:
    assert reads_files(arguments) is reads


@pytest.mark.parametrize(
    "ref", ["main", "v1.0^{commit}", "stash@{0}", "HEAD~3", "a..b", "a...b", "HEAD:src/a.py", "fix/#12", "größe", "^old", "@"]
)
def test_names_that_git_knows_are_let_through(ref: str) -> None:
    assert arguments_of.checked_ref(ref, "ref") == ref


@pytest.mark.parametrize("ref", ["", " ", "a b", "main; rm", "$(id)", "a\nb", "a\0b", "`id`", "a|b", "*", "a\\b", "'", '"', "x" * 201])
def test_names_that_git_does_not_know_are_not(ref: str) -> None:
    with pytest.raises(InvalidRequest):
        arguments_of.checked_ref(ref, "ref")


def test_numbers_are_held_to_their_bounds() -> None:
    for params, fields in (
        (arguments_of.LogParams, {"maxCount": 0}),
        (arguments_of.LogParams, {"maxCount": True}),
        (arguments_of.DiffParams, {"unified": -1}),
        (arguments_of.BlameParams, {"path": "x", "lineStart": 0}),
        (arguments_of.BlameParams, {"path": "x", "lineEnd": 1.5}),
    ):
        with pytest.raises(ValidationError):
            params.model_validate(fields)
    assert arguments_of.LogParams.model_validate({"maxCount": 5.0}).max_count == 5


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """A root with links of every kind, beside a directory that shares its prefix."""
    with tempfile.TemporaryDirectory(prefix="paths-") as place:
        root = Path(place).resolve() / "root"
        (root / "src" / "deep").mkdir(parents=True)
        (root.parent / "root-evil").mkdir()
        (root / "file").write_text("")
        for name, target in {
            "out": "/etc",
            "up": "..",
            "evil": "../root-evil",
            "inner": "src/deep",
            "loop": "loop",
            "broken": "/nowhere/at/all",
            "back": str(root),
        }.items():
            (root / name).symlink_to(target)
        yield root


names = st.sampled_from(
    [
        "..",
        ".",
        "src",
        "deep",
        "file",
        "out",
        "up",
        "evil",
        "inner",
        "loop",
        "broken",
        "back",
        "missing",
        "root",
        "root-evil",
        "etc",
        "a b",
        "ä",
        "",
    ]
)


@given(parts=st.lists(names, max_size=8), absolute=st.booleans())
@example(parts=["out", "passwd"], absolute=False)
@example(parts=["missing", "..", "..", "root-evil"], absolute=False)
@example(parts=["inner", "..", "..", ".."], absolute=False)
def test_a_path_never_leads_outside(tree: Path, parts: list[str], absolute: bool) -> None:
    target = "/".join(parts)
    if absolute:
        target = f"{tree}/{target}"
    try:
        found = resolve_path_within_root(target, str(tree))
    except NotAllowed:
        return
    assert not found.startswith("/")
    assert ".." not in found.split("/")
    # Its parent is reached without a link, and where its last name is one, it leads to the inside too.
    parent = tree if found == "." else (tree / found).parent
    assert os.path.realpath(parent) == str(parent)
    real = Path(os.path.realpath(tree / found))
    assert real == tree or tree in real.parents


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("file", "file"),
        ("./src//deep/", "src/deep"),
        ("inner", "inner"),
        ("inner/x", "src/deep/x"),
        ("src/../file", "file"),
        ("missing/deeper", "missing/deeper"),
        (".", "."),
        ("src/..", "."),
        ("back/file", "file"),
        ("../root/file", "file"),
    ],
)
def test_a_path_is_named_as_git_names_it(tree: Path, target: str, found: str) -> None:
    assert resolve_path_within_root(target, str(tree)) == found


@pytest.mark.parametrize(
    "target", ["..", "/", "/etc/passwd", "../root-evil", "out", "out/passwd", "evil/x", "broken", "up", "missing/../../x"]
)
def test_a_path_outside_is_refused(tree: Path, target: str) -> None:
    for prefix in itertools.chain([""], [f"{tree}/"] if not target.startswith("/") else []):
        with pytest.raises(NotAllowed, match="outside the permitted root"):
            resolve_path_within_root(prefix + target, str(tree))
