"""The commands of `roost sessions` that go back, or elsewhere; what they do is imported when they are run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roost.cli.options import Json, SessionId, Url

sessions = typer.Typer(
    help="List, show, answer, interrupt, fork, rewind, move and remove sessions.",
    no_args_is_help=True,
)

_WHERE = "A turn's number, or the id of an event in it"


@sessions.command("answer")
def sessions_answer(
    session: SessionId,
    answer: Annotated[
        str | None,
        typer.Argument(
            metavar="[ANSWER]", help="To a question: a choice or its number. To a tool: its result."
        ),
    ] = None,
    allow: Annotated[bool, typer.Option("--allow", help="Allow the tool call.")] = False,
    deny: Annotated[bool, typer.Option("--deny", help="Do not allow it.")] = False,
    why: Annotated[str | None, typer.Option(help="With --deny: what to tell the agent.")] = None,
    call: Annotated[
        str | None, typer.Option(help="Which one, by its id; default the oldest that waits.")
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Answer what a session waits for; without an answer, list that."""
    from roost.cli.answers import Given, answer_session
    from roost.cli.environment import connect

    given = Given(answer, allow=allow, deny=deny, why=why or "")
    with connect(url) as client:
        answer_session(client, session, given, call, as_json=json)


@sessions.command("interrupt")
def sessions_interrupt(session: SessionId, json: Json = False, url: Url = None) -> None:
    """Stop what a session's agent does now."""
    from roost.cli.answers import interrupt_session
    from roost.cli.environment import connect

    with connect(url) as client:
        interrupt_session(client, session, as_json=json)


@sessions.command("turns")
def sessions_turns(session: SessionId, json: Json = False, url: Url = None) -> None:
    """List the turns of a session that have ended."""
    from roost.cli.environment import connect
    from roost.cli.forks import print_turns

    with connect(url) as client:
        print_turns(client, session, as_json=json)


@sessions.command("fork")
def sessions_fork(
    session: SessionId,
    at: Annotated[
        str | None, typer.Option("--at", help=f"{_WHERE}; default the newest turn.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="What to call the fork.")] = None,
    keep_files: Annotated[
        bool,
        typer.Option(
            "--keep-files",
            help="Stay in the workspace that the session shares, with the files as they are.",
        ),
    ] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make another session, as this one was at the end of a turn: conversation, memory and files."""
    from roost.cli.environment import connect
    from roost.cli.forks import fork_session

    with connect(url) as client:
        fork_session(client, session, at, title, keep_files=keep_files, as_json=json)


@sessions.command("rewind")
def sessions_rewind(
    session: SessionId,
    to: Annotated[str, typer.Option("--to", help=f"{_WHERE}.")],
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="Let the files stay as they are.")
    ] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Take a session back to the end of a turn. Its log keeps what came after."""
    from roost.cli.environment import connect
    from roost.cli.forks import rewind_session

    with connect(url) as client:
        rewind_session(client, session, to, keep_files=keep_files, as_json=json)


@sessions.command("export")
def sessions_export(
    session: SessionId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; default SESSION.roost.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", help=f"{_WHERE}; default the newest turn.")
    ] = None,
    url: Url = None,
) -> None:
    """Write a session to one file: its conversation, its agent's memory and its files."""
    from roost.cli.environment import connect
    from roost.cli.transfer import export_session

    with connect(url) as client:
        export_session(client, session, output or Path(f"{session}.roost"), at)


@sessions.command("import")
def sessions_import(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="An exported session, or Claude Code's own SESSION.jsonl."
        ),
    ],
    agent: Annotated[
        str | None, typer.Option(help="An agent of this server; default the one it had.")
    ] = None,
    environment: Annotated[
        str | None, typer.Option(help="An environment of this server; default the one it had.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="What to call the session.")] = None,
    trust_level: Annotated[
        str | None, typer.Option(help="The trust level it gets; default sandboxed.")
    ] = None,
    mount_scope: Annotated[
        str | None, typer.Option(help="What it sees: workspace (default) or workspace+vault.")
    ] = None,
    workdir: Annotated[
        Path | None,
        typer.Option(
            help="With a SESSION.jsonl: the directory it worked in; default what it says."
        ),
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make a session of a file that `export` wrote, or of a session of Claude Code on this machine."""
    from roost.cli.environment import connect
    from roost.cli.transfer import import_session

    asked = {"agent": agent, "environment_id": environment, "title": title}
    asked |= {"trust_level": trust_level, "mount_scope": mount_scope}
    with connect(url) as client:
        import_session(client, source, asked, workdir, as_json=json)
