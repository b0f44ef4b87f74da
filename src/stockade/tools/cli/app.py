"""The command line's grammar: which commands there are, what they take and what they exit with.

Data goes to stdout, everything else to stderr. Each command imports what it needs when it runs, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final, cast

import typer

from stockade.errors import InvalidRequest, StockadeError
from stockade.tools.cli import exit_codes
from stockade.tools.cli.options import (
    PolicyOptions,
    RunOptions,
    StateDir,
    read_stdin,
    understand,
    understand_policy,
    with_policy_options,
    with_run_options,
)

# What the parser raises; typer has had it under several names, and this way to it in all of its versions.
_PARSER_ERROR: Final = cast("type[Exception]", typer.BadParameter.__mro__[2])

_RUN_HELP: Final = """\
Run a command that nobody trusts, sealed off, and pass on its output and its exit code.

Nothing of yours is visible to it, not even the current directory, unless you name it: --workspace DIR (it starts there), --ro, --rw.
It reads /dev/null unless --stdin, --interactive or --tty is given.

Ctrl-C sends SIGINT to the job and gives it the grace to end; a second one kills it at once. However we end, nothing of it is left.

Its record and output are kept with --state-dir or STOCKADE_STATE_DIR (one run at a time for each directory), else they go when it ends.

Exit codes:

\b
"""

app = typer.Typer(
    name="stockade",
    help="Runs commands nobody trusts: sealed by the kernel, killable to the last descendant, fully recorded.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobArgument = Annotated[str, typer.Argument(metavar="ID", help="The job, as `stockade ps` shows it.")]
_UP_TO_COMMAND: Final = {"allow_interspersed_args": False}


def _run_help() -> str:
    return _RUN_HELP + "".join(f"{code:>6}  {meaning}\n" for code, meaning in exit_codes.TABLE)


@app.command(help=_run_help(), short_help="Run a command, sealed off.", options_metavar="[OPTIONS] --", context_settings=_UP_TO_COMMAND)
@with_run_options
def run(
    options: RunOptions,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read our stdin to its end first, and give it to the job (64 MiB).")] = False,
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Pass our stdin on to the job as it comes.")] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give the job a terminal of its own, joined to ours; every key is its.")] = False,
    json: Annotated[bool, typer.Option("--json", help="No live output; at the end one JSON object with everything.")] = False,
    base64: Annotated[bool, typer.Option("--base64", help="With --json: the exact bytes of the output too.")] = False,
) -> int:
    if base64 and not json:
        raise InvalidRequest("--base64 goes with --json", field="base64", hint="without --json the output is exact as it is")
    if stdin and (interactive or tty):
        raise InvalidRequest("--stdin does not go with --interactive or --tty", field="stdin", hint="leave one of them out")
    if tty and json:
        raise InvalidRequest("--tty does not go with --json", field="tty", hint="use --interactive to pass input on")
    try:
        console = None
        if tty:
            from stockade.tools.cli.console import Console

            console = Console(0)
        wanted = understand(
            options,
            stdin=read_stdin() if stdin else None,
            interactive=interactive,
            terminal=None if console is None else console.size(),
        )
        from stockade.executor import Result
        from stockade.tools.cli.run_command import run_live, run_quietly

        if not json:
            return run_live(wanted, console)
        results: list[Result] = []
        code = run_quietly(wanted, results)
    except StockadeError as error:
        if json:
            from stockade.tools.cli import render

            print(render.as_json(render.error_fields(error, exit_codes.of_error(error))))
        raise
    from stockade.tools.cli import render

    for result in results:
        print(render.as_json(render.result_fields(result, code, with_base64=base64)))
    return code


@app.command(short_help="Print what `run` would build.", options_metavar="[OPTIONS] --", context_settings=_UP_TO_COMMAND)
@with_run_options
def explain(options: RunOptions, json: AsJson = False) -> int:
    """Print what `run` with the same options would build and which limits would hold, and stop.

    Nothing is run. In the plan, <state>/etc stands for the copy of /etc that the job would see.
    """
    import asyncio
    import re
    import tempfile

    from stockade.executor import Executor
    from stockade.tools.cli import render

    wanted = understand(options)
    with tempfile.TemporaryDirectory(prefix="stockade-") as place:
        config = wanted.config.model_copy(update={"state_dir": place})

        async def plan() -> str:
            async with Executor(wanted.policy, config=config, environment=wanted.environment) as executor:
                spec = await executor.explain(wanted.command)
            return render.as_json(render.plan_fields(spec)) if json else "\n".join(map(render.printable, spec.describe()))

        print(re.sub(rf"{re.escape(place)}/run/etc[^ \")]*", "<state>/etc", asyncio.run(plan())))
    return 0


@app.command(short_help="Examine this host.")
def doctor(json: AsJson = False) -> int:
    """Examine this host: what it can enforce, what is missing, and what to do about it. Exits with 0 when it is fit, else 1."""
    import asyncio

    from stockade.config import from_environment
    from stockade.doctor import examine
    from stockade.tools.cli import render

    report = asyncio.run(examine(from_environment()))
    if json:
        print(render.as_json(report.to_json()))
    else:
        print(render.report_table(report.checks), end="")
        print(f"\n{render.printable(report.verdict)}")
    return 0 if report.fit else 1


@app.command(short_help="List jobs.")
def ps(
    state_dir: StateDir = None,
    limit: Annotated[int, typer.Option("--limit", metavar="COUNT", min=1, max=1000, help="At most so many, the newest.")] = 50,
    running: Annotated[bool, typer.Option("--running", help="Only those that have not ended.")] = False,
    json: AsJson = False,
) -> int:
    """List the jobs of a state directory, the newest first, while its executor runs and after it has ended."""
    from stockade.jobs.states import SETTLED, JobState
    from stockade.tools.cli import render
    from stockade.tools.cli.state import find_layout, see

    states = None if not running else frozenset(JobState) - SETTLED
    seen = see(find_layout(state_dir), lambda reader: reader.list(limit=limit, states=states).records)
    shown = [(record, seen.standing(record)) for record in seen.records if not running or seen.is_alive(record)]
    if json:
        print(render.as_json([{**render.record_fields(record), "sentence": standing} for record, standing in shown]))
    else:
        print(render.jobs_table(shown), end="")
    return 0


@app.command()
def show(job: JobArgument, state_dir: StateDir = None, json: AsJson = False) -> int:
    """Print all that is recorded of one job."""
    from stockade.tools.cli import render
    from stockade.tools.cli.state import find_layout, see_job

    seen, record = see_job(find_layout(state_dir), job)
    if json:
        print(render.as_json({**render.record_fields(record), "sentence": seen.standing(record)}))
    else:
        print("\n".join(render.record_lines(record, seen.standing(record))))
    return 0


@app.command(short_help="Print what a job has written.")
def logs(
    job: JobArgument,
    state_dir: StateDir = None,
    stderr: Annotated[bool, typer.Option("--stderr", help="What it wrote to stderr instead of stdout.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    lines: Annotated[int | None, typer.Option("--lines", metavar="COUNT", min=0, help="Begin with the last so many lines.")] = None,
    exact: Annotated[bool, typer.Option("--bytes", help="The exact bytes; else text with control characters shown as escapes.")] = False,
) -> int:
    """Print what a job has written, while it runs and after it has ended."""
    from stockade.tools.cli.state import find_layout, show_log

    stream = "stderr" if stderr else "stdout"
    if remark := show_log(find_layout(state_dir), job, stream, follow=follow, lines=lines, exact=exact):
        _say(f"stockade: {remark}")
    return 0


@app.command(short_help="End a job of a running executor.")
def kill(
    job: JobArgument,
    state_dir: StateDir = None,
    signal: Annotated[int, typer.Option("--signal", metavar="N", min=1, max=64, help="The first signal.")] = 15,
    grace: Annotated[float | None, typer.Option("--grace", metavar="SECONDS", min=0, max=3600, help="Between it and SIGKILL.")] = None,
) -> int:
    """Have the executor that runs a job end it, wait until it has ended, and say how."""
    from stockade.tools.cli.state import find_layout, kill_job

    was_running, sentence = kill_job(find_layout(state_dir), job, signal=signal, grace=grace)
    _say(f"stockade: job {job} {'' if was_running else 'has ended already: '}{sentence}")
    return 0


@app.command(short_help="Remove ended jobs with their output.")
def purge(
    state_dir: StateDir = None,
    older_than: Annotated[str | None, typer.Option("--older-than", metavar="TIME", help="Remove what ended before, such as 7d.")] = None,
    keep_count: Annotated[int | None, typer.Option("--keep-count", metavar="COUNT", min=0, help="Keep so many, the newest.")] = None,
    keep_bytes: Annotated[str | None, typer.Option("--keep-bytes", metavar="SIZE", help="Keep so much on disk, such as 1G.")] = None,
    unread: Annotated[bool, typer.Option("--unread", help="Also what nobody has read; else that stays.")] = False,
    only_say: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
) -> int:
    """Remove ended jobs that were read, with their output; their ids are printed. Refuses while an executor uses the state directory."""
    from stockade.tools.cli import render
    from stockade.tools.cli.options import retention
    from stockade.tools.cli.state import find_layout
    from stockade.tools.cli.state import purge as purge_directory

    wanted = retention(older_than, keep_count, keep_bytes)
    done = purge_directory(find_layout(state_dir), wanted, unread=unread, only_say=only_say)
    for job_id in done.removed:
        print(job_id)
    _say(f"stockade: {'would remove' if only_say else 'removed'} {len(done.removed)}, {render.size(done.bytes)} on disk")
    for job_id, why in done.failed:
        _say(f"stockade: {job_id} could not be removed: {why}")
    return exit_codes.FAILED if done.failed else 0


@app.command(short_help="Serve the tools for agents over MCP.")
@with_policy_options
def mcp(
    options: PolicyOptions,
    tools: Annotated[str, typer.Option("--tools", metavar="SURFACE", help="default, commands, or shells.")] = "default",
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, max=600, help="How long a call waits for a command by itself.")
    ] = 50.0,
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="Serve streamable HTTP there, instead of stdin and stdout.")
    ] = None,
    host_name: Annotated[
        list[str] | None, typer.Option("--host-name", metavar="NAME", help="A name by which HTTP clients may call this host. Repeatable.")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="Bearer tokens of HTTP clients, one a line [STOCKADE_MCP_TOKEN].")
    ] = None,
) -> int:
    """Serve the tools for agents over the Model Context Protocol, to the client that starts us or over HTTP.

    The options say what commands may do; a model can ask for less, never for more. When the client goes, every command is ended.

    A server that other machines can reach needs a token. It is read from a file or from STOCKADE_MCP_TOKEN.
    """
    from stockade.tools.mcp_server.options import serving

    wanted, serve = serving(understand_policy(options), tools=tools, wait=wait, http=http, names=host_name or (), token_file=token_file)
    return serve(wanted, lambda url: _say(f"stockade: serving MCP at {url}"))


@app.command(name="tools", short_help="Print the schemas of the tools for agents.")
def print_tools(
    shape: Annotated[str, typer.Option("--format", metavar="FORMAT", help="anthropic, openai, or mcp.")] = "mcp",
    surface: Annotated[
        str, typer.Option("--tools", metavar="SURFACE", help="default, commands, bash, jobs, shells, checklist, or git.")
    ] = "default",
) -> int:
    """Print the tools of a surface, as the APIs of models take it: one JSON array, always in the same order."""
    import json as json_text

    from stockade.tools.described import described

    print(json_text.dumps(described(surface, shape), indent=2, ensure_ascii=True))
    return 0


@app.callback(invoke_without_command=True)
def _stockade(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"stockade {installed('stockade')}")
        raise typer.Exit(0)


def main() -> None:
    """The program `stockade`."""
    _keep_standard_descriptors()
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """Does what the arguments say; the exit code. Whatever goes wrong is told in one line and never as a traceback."""
    try:
        code = app(args=list(arguments) or ["--help"], prog_name="stockade", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except StockadeError as error:
        _complain(error.message, error.hint)
        return exit_codes.of_error(error)
    except _PARSER_ERROR as error:
        asked = getattr(getattr(error, "ctx", None), "command_path", "stockade")
        _complain(getattr(error, "format_message", error.__str__)().rstrip("."), f"`{asked} --help` lists what there is")
        return exit_codes.FAILED
    except BrokenPipeError:
        _forget_stdout()
        return exit_codes.UNREAD
    except SystemExit as gone:  # how typer ends a command whose output nobody reads
        if not isinstance(gone.__context__, BrokenPipeError):
            raise
        _forget_stdout()
        return exit_codes.UNREAD
    except (KeyboardInterrupt, typer.Abort):
        return exit_codes.INTERRUPTED
    except OSError as error:
        _complain(str(error), None)
        return exit_codes.FAILED
    except Exception as error:  # noqa: BLE001 - the last door: a bug is said in one line, with the place where it is
        _complain(f"internal error: {type(error).__name__}: {error}", f"this is a bug of Stockade, please report it with: {_place(error)}")
        return exit_codes.FAILED


def _place(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "unknown place" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _complain(message: str, hint: str | None) -> None:
    _say(f"stockade: {message}" if hint is None else f"stockade: {message}\nhint: {hint}")


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens; the exit code says it too


def _forget_stdout() -> None:
    """Python would try to write what is left once more when it ends, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _keep_standard_descriptors() -> None:
    """Where we were started with stdin, stdout or stderr closed, the next file that we open would take its place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - ours until the end
        # What cannot be said in the terminal's encoding is better shown as an escape than not at all.
        getattr(sys, name).reconfigure(errors="backslashreplace")
