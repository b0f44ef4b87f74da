"""The arguments of the six git tools, and the command lines made of them (1A.12). Pure: nothing is looked up.

Values are never flags: what begins with "-" is refused, options that take a value are written `--name=value` in one entry, and
paths stand after `--`. Each subcommand that can show a change is told not to start the programs that a repository may name for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field

from stockade.errors import InvalidRequest
from stockade.policy.checks import text
from stockade.tools.schemas import WHOLE, Params

MAX_REF: Final = 200  # characters
MAX_SINCE: Final = 64
MAX_COUNT: Final = 500
MAX_LINE: Final = 10_000_000
MAX_UNIFIED: Final = 50
BLAME_SPAN: Final = 100  # lines, where only one end is given

# What names of branches, revisions and ranges are made of: main~2, v1.0^{commit}, stash@{0}, HEAD:src/a.py, origin/fix-#12.
_REF: Final = re.compile(r"[\w./@{}~^:+#%,=!-]+")
_SINCE: Final = re.compile(r"[A-Za-z0-9 :.,+/-]+")

# Before the subcommand, always. An empty value turns a program off that the repository's own configuration may name.
GLOBAL_OPTIONS: Final = (
    "--no-pager",
    "--literal-pathspecs",  # a path is a path, also where it begins with ":" or has a "*" in it
    *("-c", "color.ui=false"),
    *("-c", "diff.external="),
    *("-c", "core.fsmonitor="),
)

# After these subcommands, always: neither external diffs nor text conversions.
SHOWING: Final = frozenset({"blame", "diff", "log", "show", "diff-files", "diff-index", "diff-tree", "format-patch", "whatchanged"})
_NO_PROGRAMS: Final = ("--no-ext-diff", "--no-textconv")
# A look into a submodule's files would be a git of its own, under that repository's configuration.
_NO_SUBMODULES: Final = ("--ignore-submodules=dirty", "--submodule=short")

P = TypeVar("P", bound=Params)
PathCheck = Callable[[str], str]  # gives the path as git names it, relative to the top


Ref = Annotated[str, Field(description="A revision, such as main, HEAD~2, v1.0 or a commit's hash.")]
Path = Annotated[str | None, Field(description="A file or directory inside the repository, relative to its top.")]
Line = Annotated[int, Field(ge=1, le=MAX_LINE), WHOLE]


class LogParams(Params):
    """Arguments of `git_log`."""

    ref: Annotated[str | None, Field(description="Where to start, or a range such as main..feature. HEAD where left out.")] = None
    path: Path = None
    max_count: Annotated[int, Field(ge=1, le=MAX_COUNT, description="How many commits at most."), WHOLE] = 20
    since: Annotated[str | None, Field(description="Only commits after this date, such as 2026-01-31 or 2 weeks ago.")] = None
    format: Literal["oneline", "full", "stat", "name-only"] = "oneline"


class ShowParams(Params):
    """Arguments of `git_show`."""

    ref: Annotated[str, Field(description="A commit, a tag, or a file at a revision, such as HEAD~1:src/main.py.")]
    path: Path = None
    name_only: Annotated[bool, Field(description="Only the names of the changed files.")] = False


class DiffParams(Params):
    """Arguments of `git_diff`."""

    base: Annotated[str | None, Field(description="The older side. Left out: what is staged, against the files.")] = None
    head: Annotated[str | None, Field(description="The newer side; needs base. Left out: the files as they are.")] = None
    path: Path = None
    name_only: Annotated[bool, Field(description="Only the names of the changed files.")] = False
    stat: Annotated[bool, Field(description="How many lines changed in each file, in place of the changes.")] = False
    unified: Annotated[int | None, Field(ge=0, le=MAX_UNIFIED, description="Lines of context around a change."), WHOLE] = None


class BlameParams(Params):
    """Arguments of `git_blame`."""

    path: Annotated[str, Field(description="A file inside the repository, relative to its top.")]
    ref: Annotated[str | None, Field(description="The revision to look at. Left out: the file as it is.")] = None
    line_start: Annotated[Line | None, Field(description="The first line; alone, 100 lines from it on.")] = None
    line_end: Annotated[Line | None, Field(description="The last line; alone, the 100 lines that end with it.")] = None


class MergeBaseParams(Params):
    """Arguments of `git_merge_base`."""

    base: Ref
    head: Ref


class LsFilesParams(Params):
    """Arguments of `git_ls_files`."""

    path: Path = None


def log_arguments(params: LogParams, path_of: PathCheck) -> list[str]:
    """The arguments after the global ones. Raises: InvalidRequest, here and below, with the field."""
    layout = {"oneline": ["--oneline"], "full": ["--format=fuller"], "stat": ["--format=medium", "--stat"]}
    arguments = ["log", *layout.get(params.format, ["--format=medium", "--name-only"]), f"--max-count={params.max_count}"]
    if params.since is not None:
        arguments.append(f"--since={_since(params.since)}")
    if params.ref is not None:
        arguments.append(checked_ref(params.ref, "ref"))
    return [*arguments, *_paths(params.path, path_of)]


def show_arguments(params: ShowParams, path_of: PathCheck) -> list[str]:
    """See `log_arguments`."""
    names = ["--name-only"] if params.name_only else []
    return ["show", "--format=medium", *names, checked_ref(params.ref, "ref"), *_paths(params.path, path_of)]


def diff_arguments(params: DiffParams, path_of: PathCheck) -> list[str]:
    """See `log_arguments`."""
    if params.head is not None and params.base is None:
        raise InvalidRequest(
            "head: it was given without base", field="head", hint="give base as well, or only base to compare it with the files"
        )
    arguments = ["diff"]
    if params.name_only:
        arguments.append("--name-only")
    if params.stat:
        arguments.append("--stat")
    if params.unified is not None and len(arguments) == 1:  # it would ask for the changes as well
        arguments.append(f"--unified={params.unified}")
    refs = [checked_ref(ref, field) for ref, field in ((params.base, "base"), (params.head, "head")) if ref is not None]
    return [*arguments, *refs, *_paths(params.path, path_of)]


def blame_arguments(params: BlameParams, path_of: PathCheck) -> list[str]:
    """See `log_arguments`."""
    arguments = ["blame"]
    start, end = params.line_start, params.line_end
    if start is not None or end is not None:
        first = start if start is not None else max(1, (end or 1) - BLAME_SPAN + 1)
        last = end if end is not None else first + BLAME_SPAN - 1
        if last < first:
            raise InvalidRequest(
                f"lineEnd: {last} is before lineStart {first}", field="lineEnd", hint="give lineStart first and a lineEnd not below it"
            )
        arguments.append(f"-L{first},{last}")
    if params.ref is not None:
        arguments.append(checked_ref(params.ref, "ref"))
    return [*arguments, *_paths(params.path, path_of)]


def merge_base_arguments(params: MergeBaseParams, path_of: PathCheck) -> list[str]:
    """See `log_arguments`."""
    return ["merge-base", "--", checked_ref(params.base, "base"), checked_ref(params.head, "head")]


def ls_files_arguments(params: LsFilesParams, path_of: PathCheck) -> list[str]:
    """See `log_arguments`."""
    return ["ls-files", *_paths(params.path, path_of)]


def command_line(executable: str, arguments: list[str]) -> list[str]:
    """The whole argv: global options first, and right behind the subcommand what keeps it from starting programs."""
    subcommand, rest = arguments[0], arguments[1:]
    guards: tuple[str, ...] = _NO_PROGRAMS if subcommand in SHOWING else ()
    if subcommand in SHOWING and subcommand != "blame":
        guards += _NO_SUBMODULES
    return [executable, *GLOBAL_OPTIONS, subcommand, *guards, *rest]


def reads_files(arguments: list[str]) -> bool:
    """True where git compares or reads the checked-out files, and may run the filters that are configured for them."""
    if arguments[0] not in ("diff", "blame"):
        return arguments[0] not in ("log", "show", "merge-base", "ls-files")
    before = arguments[1 : arguments.index("--")] if "--" in arguments else arguments[1:]
    refs = [each for each in before if not each.startswith("-")]
    return len(refs) < (2 if arguments[0] == "diff" else 1)


def checked_ref(value: str, field: str) -> str:
    """`value`, where it can be the name of a revision and nothing else. Raises: InvalidRequest(field)."""
    if value.startswith("-"):
        raise InvalidRequest(
            f"{field}: {_short(value)} begins with '-', and a value is never taken for an option",
            field=field,
            hint="name a branch, a tag or a commit, such as main or HEAD~1",
        )
    if len(value) > MAX_REF:
        raise InvalidRequest(
            f"{field}: {_short(value)} has {len(value)} characters and {MAX_REF} is the most",
            field=field,
            hint="name the commit by its hash",
        )
    if not _REF.fullmatch(value):
        raise InvalidRequest(
            f"{field}: {_short(value)} is not a valid revision",
            field=field,
            hint="name one branch, tag, commit or range, such as main, v1.0, HEAD~1 or main..feature; there is no shell",
        )
    return value


def _since(value: str) -> str:
    if len(value) > MAX_SINCE or value.startswith("-") or not _SINCE.fullmatch(value):
        raise InvalidRequest(
            f"since: {_short(value)} is not a date of at most {MAX_SINCE} letters, digits, blanks and any of : . , + / -",
            field="since",
            hint="give a date such as 2026-01-31, or 2 weeks ago",
        )
    return value


def _paths(path: str | None, path_of: PathCheck) -> list[str]:
    if path is None:
        return ["--"]
    if path.startswith("-"):
        raise InvalidRequest(
            f"path: {_short(path)} begins with '-', and a value is never taken for an option",
            field="path",
            hint=f"write it as {_short('./' + path)} where a file has this name",
        )
    try:
        text(path)
    except ValueError as error:
        raise InvalidRequest(f"path: {error}", field="path") from None
    if not path.strip():
        raise InvalidRequest("path: it is blank", field="path", hint="leave it out for the whole repository, or name a file")
    return ["--", path_of(path)]


def _short(value: str) -> str:
    return repr(value) if len(value) <= 80 else f"{value[:80]!r}…"
