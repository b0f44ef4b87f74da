"""Six tools that read a git repository: `git_log`, `git_show`, `git_diff`, `git_blame`, `git_merge_base`, `git_ls_files` (1A.12).

Each call is a job of its own under a policy of its own (N-P5): the repository and nothing else of the host, read-only, no network,
and git as the one program. The executor's general policy neither allows it nor is widened by it.

A repository is untrusted, and its configuration can name programs for git to run. None of them runs: external diffs, text
conversions, fsmonitor and pagers are turned off on the command line, hooks and signature checks by configuration that outranks
the repository's, filters by their names before git reads checked-out files, transports by protocol. What were to run all the same
would have what git has: the sandbox.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

from stockade.bank.references import MAX_PREVIEW_CHARS, Reference, preview_of, unbanked
from stockade.errors import InvalidRequest, PolicyError, StockadeError
from stockade.executor import Executor
from stockade.jobs.records import JobRecord
from stockade.policy.checks import Checked, Strict, text
from stockade.policy.model import Network, Policy
from stockade.tools import command_policy
from stockade.tools import git_arguments as arguments_of
from stockade.tools.git_arguments import PathCheck, command_line, reads_files
from stockade.tools.git_repository import Repository, locate, resolve_path_within_root
from stockade.tools.retrieval import HostArtifacts
from stockade.tools.schemas import CallContext, Effects, Params, Tool
from stockade.tools.sessions import HostSession
from stockade.tools.toolset import Toolset
from stockade.tools.wire import CommandStatus, status_of

NAMES: Final = ("git_log", "git_show", "git_diff", "git_blame", "git_merge_base", "git_ls_files")
TIMEOUT_MS: Final = 60_000
OUTPUT_BYTES: Final = 33_554_432
PREVIEW_CHARS: Final = 2_000

_LIMITS: Final = {"memory": "1G", "processes": 64, "grace": 1.0, "tmp_size": "16M", "home_size": "1M", "shm_size": "1M"}
_FILTER_KEYS: Final = r"^filter\..*\.(clean|smudge|process|required)$"
# Outranks the repository's own configuration, like the options of the command line.
_CONFIGURATION: Final = {
    "color.diff": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.quotePath": "false",
    "core.sshCommand": "/bin/false",
    "credential.helper": "",
    "gpg.program": "/bin/false",
    "log.showSignature": "false",
    "protocol.allow": "never",
}
_PRIVATE: Final = (
    "Git is another user there than the owner, and {!r} is closed to others: let them read the repository (chmod -R o+rX), "
    "or run the host as its owner."
)

P = TypeVar("P", bound=Params)


def _repo_root(value: Any) -> str:
    path = text(os.fspath(value) if isinstance(value, os.PathLike) else value)
    if not path:
        raise ValueError("is empty: name the top-level directory of a git repository")
    return path if os.path.isabs(path) else os.path.abspath(path)  # where the host is now, and not at some later call


def _preview_chars(value: Any) -> int:
    return int(command_policy.checked_number(value, low=1, high=MAX_PREVIEW_CHARS, unit="characters", whole=True))


def _executable(value: Any) -> str:
    name = text(value)
    if not name:
        raise ValueError("is empty: give 'git', or the absolute path of a git that jobs can see")
    return name


class GitSettings(Strict):
    """What `register_git_tools` is given (1A.12). Raises: PolicyError, with the field."""

    refusal = PolicyError
    noun = "git settings"

    repo_root: Annotated[str, Checked(_repo_root)]  # looked up in each call
    timeout_ms: Annotated[float, Checked(command_policy.timeout_ms)] = TIMEOUT_MS
    max_output_bytes: Annotated[int, Checked(command_policy.output_bytes)] = OUTPUT_BYTES  # each stream
    preview_chars: Annotated[int, Checked(_preview_chars)] = PREVIEW_CHARS
    git_executable: Annotated[str, Checked(_executable)] = "git"


def git_policy(repository: Repository, settings: GitSettings) -> Policy:
    """All that git may touch: the repository, to read, where it really is.

    It is named as the host names it, so that the executor sees each link on the way: one that a job could plant is refused.
    """
    return Policy.model_validate(
        {
            "ro": [settings.repo_root],
            "executables": [settings.git_executable],
            "network": Network.NONE,
            "env": _environment(repository),
            "limits": {**_LIMITS, "wall_time": settings.timeout_ms / 1_000, "output": settings.max_output_bytes},
        }
    )


def _environment(repository: Repository, configuration: Mapping[str, str] | None = None) -> dict[str, str]:
    """A small fixed set: git looks at this repository and at no configuration but its own, asks nobody, locks and fetches nothing.

    The repository's files belong to none of the job's ids; naming the repository outright is what git takes for consent to that, and
    safe.directory says it once more for what git starts.
    """
    settings = {**_CONFIGURATION, "safe.directory": repository.root, **(configuration or {})}
    place = {"GIT_DIR": repository.git_dir, "GIT_WORK_TREE": repository.root}
    if repository.bare:
        del place["GIT_WORK_TREE"]
    return {
        **place,
        "LC_ALL": "C",
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(settings)),
        **{f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(settings)},
        **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(settings.values())},
    }


@dataclass(frozen=True, slots=True)
class GitToolset:
    """The git tools of one host: its executor, one repository, and the session that its calls belong to."""

    executor: Executor
    settings: GitSettings
    session: HostSession
    offer_artifacts: Callable[[], None]  # puts `retrieve_context` on offer, which results refer to
    started: set[str] = field(default_factory=set)  # the ids of its jobs

    async def run(self, arguments: Sequence[str], session: str | None = None) -> dict[str, Any]:
        """Runs git with `arguments`, the subcommand first, under the policy of the tools; see `run_git_command`."""
        given = list(arguments)
        if not given or not all(isinstance(each, str) for each in given) or given[0].startswith("-"):
            raise InvalidRequest(
                f"args: {given!r:.200} does not begin with a subcommand",
                field="args",
                hint='give a list with the subcommand first and one entry for each argument, such as ["log", "--oneline"]',
            )
        repository = await self.executor.call(locate, self.settings.repo_root)
        return await self._run(repository, given, self.session.resolve(CallContext(session)))

    async def answer(self, build: Callable[[P, PathCheck], list[str]], params: P, context: CallContext) -> Mapping[str, Any]:
        """The result of one tool call."""

        def look() -> tuple[Repository, list[str]]:
            repository = locate(self.settings.repo_root)
            return repository, build(params, lambda path: resolve_path_within_root(path, repository.root))

        repository, given = await self.executor.call(look)
        return await self._run(repository, given, self.session.resolve(context))

    async def _run(self, repository: Repository, given: list[str], session: str) -> dict[str, Any]:
        policy = git_policy(repository, self.settings)
        if reads_files(given):
            policy = policy.replace(env=_environment(repository, await self._without_filters(repository, policy, session)))
        argv = command_line(self.settings.git_executable, given)
        record = await self._settled(argv, policy, repository, session, label=f"git {given[0]}", artifacts=True)
        self.offer_artifacts()
        return await self._result(record, argv, repository)

    async def _without_filters(self, repository: Repository, policy: Policy, session: str) -> dict[str, str]:
        """The configuration that turns off the filters which the repository defines: git has no one option for all of them."""
        argv = [self.settings.git_executable, "config", "--name-only", "-z", "--get-regexp", _FILTER_KEYS]
        record = await self._settled(argv, policy, repository, session, label="git filters", artifacts=False)
        page = await self.executor.read_bytes(record.id) if record.stdout_bytes else None
        if record.outcome is None or record.outcome.kind != "exited" or (page is not None and len(page.data) < record.stdout_bytes):
            hint = "look at its .git/config" if repository.private is None else _PRIVATE.format(repository.private)
            raise StockadeError(f"the repository's filters could not be listed: {record.sentence()}", hint=hint)
        keys = {os.fsdecode(key) for key in page.data.split(b"\0") if key} if page is not None else set()
        return {key: "false" if key.endswith(".required") else "" for key in sorted(keys)}

    async def _settled(
        self, argv: list[str], policy: Policy, repository: Repository, session: str, *, label: str, artifacts: bool
    ) -> JobRecord:
        job = await self.executor.start_with_policy(argv, policy, session=session, artifacts=artifacts, cwd=repository.root, label=label)
        self.started.add(job.id)
        try:
            return await job.wait()
        except asyncio.CancelledError:
            await job.kill(grace=0)  # nobody was given its id
            raise

    async def _result(self, record: JobRecord, argv: list[str], repository: Repository) -> dict[str, Any]:
        status = status_of(record, {}, strict_states=True)
        output = status.stdout or _stand_in(status)
        ok = (status.state, status.exit_code) == ("exited", 0)
        error = status.error
        if not ok and repository.private is not None and status.state in ("exited", "failed"):
            error = f"{error or 'git failed'} {_PRIVATE.format(repository.private)}"
        fields = {
            "command": shlex.join(argv),
            "ok": ok,
            "exitCode": status.exit_code,
            "state": status.state,
            "error": error,
            "preview": await self._preview(record) if output.size_bytes else "",
            "output": {
                "artifactId": output.artifact_id,
                "label": output.label,
                "kind": output.kind,
                "sizeBytes": output.size_bytes,
            },
            "readBackHint": output.read_back_hint,
            "stderrPreview": (status.stderr.preview if status.stderr is not None else "") or None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    async def _preview(self, record: JobRecord) -> str:
        page = await self.executor.read(record.id, limit=self.settings.preview_chars + 1)
        return preview_of(page.content, self.settings.preview_chars)


def _stand_in(status: CommandStatus) -> Reference:
    """For a job that has not settled, though it was waited for without a bound: its executor was closed."""
    reason = f"the job is {status.state}"
    return unbanked(label=status.label, kind="command-output", size_bytes=0, preview="", reason=reason, paths=())


_configured: Final[weakref.WeakKeyDictionary[Toolset, GitToolset]] = weakref.WeakKeyDictionary()


def register_git_tools(
    toolset: Toolset,
    executor: Executor,
    *,
    repo_root: str | os.PathLike[str],
    timeout_ms: float = TIMEOUT_MS,
    max_output_bytes: int = OUTPUT_BYTES,
    preview_chars: int = PREVIEW_CHARS,
    git_executable: str = "git",
    session: HostSession | None = None,
) -> GitToolset:
    """Offers the six tools on the repository whose top-level directory is `repo_root`; again replaces what was set before.

    The repository is looked at in each call, so it may be made later. `session` is what the host's other tools use too.

    Raises: PolicyError, with the field.
    """
    settings = GitSettings.model_validate(
        {
            "repo_root": repo_root,
            "timeout_ms": timeout_ms,
            "max_output_bytes": max_output_bytes,
            "preview_chars": preview_chars,
            "git_executable": git_executable,
        }
    )
    known = _configured.get(toolset)
    whose = session or (known.session if known is not None else HostSession())
    started = known.started if known is not None else set()
    git = GitToolset(executor, settings, whose, _offer(weakref.ref(toolset), executor, whose, started), started)
    toolset.register(*git_tools(git))
    _configured[toolset] = git
    return git


def _offer(toolset: weakref.ref[Toolset], executor: Executor, session: HostSession, started: set[str]) -> Callable[[], None]:
    """By a weak reference, because what is kept for a toolset would otherwise keep the toolset."""

    def offer() -> None:
        tools = toolset()
        if tools is not None:
            HostArtifacts(executor, session, tools, started.__contains__).offer()

    return offer


async def run_git_command(toolset: Toolset, args: Sequence[str], session: str | None = None) -> dict[str, Any]:
    """Runs any git command under the policy of the git tools, for host code; the result is that of the tools.

    Raises: StockadeError where no git tools are registered; InvalidRequest and its kin where it cannot be started.
    """
    git = _configured.get(toolset)
    if git is None:
        raise StockadeError("git is not configured for this toolset", hint="call register_git_tools(toolset, executor, repo_root=…) first")
    return await git.run(args, session)


def git_tools(git: GitToolset) -> tuple[Tool[Any], ...]:
    """The six tools."""

    def tool(name: str, description: str, params: type[P], build: Callable[[P, PathCheck], list[str]], advice: str) -> Tool[P]:
        def operation(given: P, context: CallContext) -> Awaitable[Mapping[str, Any]]:
            return git.answer(build, given, context)

        effects = Effects(read_only=True, idempotent=True)
        described = f"{description} The whole output is kept; a preview comes back, and the way to read the rest."
        return Tool(name, described, params, operation, advice=advice, effects=effects)

    of = arguments_of
    return (
        tool("git_log", "Lists commits.", of.LogParams, of.log_arguments, 'pass {} or {"ref": "main", "maxCount": 20}'),
        tool("git_show", "Shows a commit, a tag, or a file at a revision.", of.ShowParams, of.show_arguments, 'pass {"ref": "HEAD"}'),
        tool(
            "git_diff",
            "Shows what differs between two revisions, or between a revision and the files.",
            of.DiffParams,
            of.diff_arguments,
            'pass {} or {"base": "main", "head": "HEAD"}',
        ),
        tool(
            "git_blame",
            "Shows the commit that each line of a file comes from.",
            of.BlameParams,
            of.blame_arguments,
            'pass {"path": "README.md", "lineStart": 1, "lineEnd": 40}',
        ),
        tool(
            "git_merge_base",
            "Finds the commit that two revisions have in common.",
            of.MergeBaseParams,
            of.merge_base_arguments,
            'pass {"base": "main", "head": "HEAD"}',
        ),
        tool("git_ls_files", "Lists the tracked files.", of.LsFilesParams, of.ls_files_arguments, 'pass {} or {"path": "src"}'),
    )
