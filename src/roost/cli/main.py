"""Every command and flag. What a command does is imported when it is run: `--help` stays quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from roost.cli.deployment_commands import deployment
from roost.cli.environment_commands import environments
from roost.cli.options import Json, SessionId, Url
from roost.cli.pool_commands import pool
from roost.cli.session_commands import sessions
from roost.cli.vault_commands import vaults
from roost.cli.webhook_commands import webhooks
from roost.cli.workspace_commands import workspaces
from roost.errors import RoostError, StartupError

app = typer.Typer(
    name="roost",
    help="Durable agent sessions on machines you own, behind the Claude Managed Agents API.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
key = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)
app.add_typer(sessions, name="sessions")
image = typer.Typer(help="Build what `docker` sandboxes are made of.", no_args_is_help=True)
app.add_typer(key, name="key")
app.add_typer(key, name="keys", hidden=True)  # as `roost sessions` and others are called
app.add_typer(image, name="image")
node = typer.Typer(help="List the servers of a database, and drain one.", no_args_is_help=True)
app.add_typer(node, name="node")
harness = typer.Typer(help="List the kinds of agents that sessions can have.", no_args_is_help=True)
app.add_typer(harness, name="harness")
app.add_typer(environments, name="environments")
app.add_typer(workspaces, name="workspaces")
app.add_typer(vaults, name="vaults")
app.add_typer(deployment, name="deployment")
app.add_typer(deployment, name="deployments", hidden=True)
app.add_typer(webhooks, name="webhooks")
app.add_typer(pool, name="pool")
app.add_typer(pool, name="pools", hidden=True)
blobs = typer.Typer(help="The store of snapshots and files.", no_args_is_help=True)
app.add_typer(blobs, name="blobs")


def _print_version(wanted: bool) -> None:
    if wanted:
        from roost import __version__

        print(f"roost {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Durable agent sessions on machines you own, behind the Claude Managed Agents API."""


def run() -> None:
    """The `roost` command. An error is one line and what to do about it, never a traceback."""
    try:
        app()
    except RoostError as error:
        _say(error)
        sys.exit(1)


def _say(error: RoostError) -> None:
    print(f"roost: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; 0 takes a free one.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The directory with the database and the keys.")
    ] = None,
) -> None:
    """Run the server until it is told to stop (Ctrl-C or SIGTERM)."""
    from roost.cli.environment import settings
    from roost.serve.main import STARTUP_FAILURE
    from roost.serve.main import serve as run_server

    try:
        found = settings(host=host, port=port, data=data)
    except StartupError as error:
        _say(error)
        raise typer.Exit(STARTUP_FAILURE) from None  # started again, it would fail the same way
    raise typer.Exit(run_server(found))


@app.command()
def worker(
    environment: Annotated[
        str, typer.Option("--environment", help="The id of a self-hosted environment, env_….")
    ],
    directory: Annotated[
        Path, typer.Option("--directory", help="Where the sessions' directories are kept.")
    ] = Path("roost-worker"),
    sessions: Annotated[
        int, typer.Option("--sessions", min=1, help="How many are served at the same time.")
    ] = 4,
    max_idle: Annotated[
        float, typer.Option("--max-idle", min=0, help="Seconds until an idle one is let go.")
    ] = 60,
    network: Annotated[
        bool, typer.Option("--network", help="Let their commands reach public addresses.")
    ] = False,
    url: Url = None,
) -> None:
    """Run the tools of a server's sessions on this machine, in sandboxes, until told to stop."""
    from roost.cli.workers import run_worker

    run_worker(environment, directory, url, most=sessions, max_idle=max_idle, network=network)


@app.command()
def chat(
    message: Annotated[str | None, typer.Argument(help="The first message.")] = None,
    session: Annotated[
        str | None, typer.Option("--session", "-s", help="Go on with this session.")
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="The agent of a new session, by id or name; default roost-chat."),
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(help="The workspace of a new session; default one of its own.")
    ] = None,
    vault: Annotated[
        list[str] | None,
        typer.Option(help="A vault of a new session, by name or id; may be given more than once."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Send one message, print the answer, and leave.")
    ] = False,
    url: Url = None,
) -> None:
    """Talk to an agent in the terminal. Ctrl-C interrupts it; at the prompt it leaves."""
    from roost.cli.chat import ChatSession, converse
    from roost.cli.environment import connect

    with connect(url) as client:
        asked = ChatSession(agent=agent, workspace=workspace, vaults=vault or [])
        raise typer.Exit(converse(client, message, session_id=session, asked=asked, once=once))


@app.command()
def logs(
    session: SessionId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens from now on.")
    ] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Print a session's log: one event per line, in order."""
    from roost.cli.environment import connect
    from roost.cli.sessions import print_log

    with connect(url) as client:
        print_log(client, session, follow=follow, as_json=json)


@sessions.command("ls")
def sessions_ls(
    archived: Annotated[
        bool, typer.Option("--all", "-a", help="Show archived sessions too.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many to show.")] = 20,
    json: Json = False,
    url: Url = None,
) -> None:
    """List sessions, the newest first."""
    from roost.cli.environment import connect
    from roost.cli.sessions import print_sessions

    with connect(url) as client:
        print_sessions(client, archived=archived, limit=limit, as_json=json)


@sessions.command("show")
def sessions_show(session: SessionId, json: Json = False, url: Url = None) -> None:
    """Show one session: where it stands, its agent, what it has used."""
    from roost.cli.environment import connect
    from roost.cli.sessions import print_session

    with connect(url) as client:
        print_session(client, session, as_json=json)


@sessions.command("rm")
def sessions_rm(
    sessions: Annotated[list[str], typer.Argument(metavar="SESSION...", help="Their ids.")],
    json: Json = False,
    url: Url = None,
) -> None:
    """Delete sessions and their logs, for good."""
    from roost.cli.environment import connect
    from roost.cli.sessions import remove_sessions

    with connect(url) as client:
        remove_sessions(client, sessions, as_json=json)


@key.command("create")
def key_create(
    name: Annotated[str, typer.Argument(help="What or whom the key is for.")],
    tenant: Annotated[str | None, typer.Option(help="The tenant whose sessions it sees.")] = None,
    role: Annotated[str | None, typer.Option(help="`user`, or `admin`: may manage keys.")] = None,
    trust_ceiling: Annotated[
        str | None, typer.Option(help="The highest trust level it may ask for.")
    ] = None,
    sees: Annotated[
        str | None,
        typer.Option(help="`own`: what it made itself (default of users); `tenant`: all of it."),
    ] = None,
    replaces: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Owns what this key owns; revoke that one afterwards."),
    ] = None,
    writes_per_minute: Annotated[
        int | None, typer.Option(min=0, help="Changing requests per minute; 0: no limit.")
    ] = None,
    reads_per_minute: Annotated[
        int | None, typer.Option(min=0, help="Reading requests per minute; 0: no limit.")
    ] = None,
    max_sessions: Annotated[
        int | None, typer.Option(min=0, help="Sessions that are not archived; 0: no limit.")
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make an API key. Its secret is shown once, now."""
    from roost.cli.environment import connect
    from roost.cli.keys import create_key

    limits = {
        "writes_per_minute": writes_per_minute,
        "reads_per_minute": reads_per_minute,
        "max_sessions": max_sessions,
    }
    asked = {"name": name, "tenant": tenant, "role": role, "trust_ceiling": trust_ceiling}
    asked |= {"sees": sees, "replaces": replaces}
    with connect(url) as client:
        create_key(client, asked, limits, as_json=json)


@key.command("ls")
def key_ls(json: Json = False, url: Url = None) -> None:
    """List the keys, without their secrets."""
    from roost.cli.environment import connect
    from roost.cli.keys import print_keys

    with connect(url) as client:
        print_keys(client, as_json=json)


@key.command("revoke")
def key_revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="The key's id.")],
    json: Json = False,
    url: Url = None,
) -> None:
    """Revoke a key: it is refused from now on."""
    from roost.cli.environment import connect
    from roost.cli.keys import revoke_key

    with connect(url) as client:
        revoke_key(client, key_id, as_json=json)


@key.command("rotate-master")
def key_rotate_master(json: Json = False, url: Url = None) -> None:
    """Encrypt all secrets in the database anew, with the first key of ROOST_MASTER_KEY."""
    from roost.cli.environment import connect
    from roost.cli.keys import rotate_master

    with connect(url) as client:
        raise typer.Exit(rotate_master(client, as_json=json))


@harness.command("ls")
def harness_ls(json: Json = False, url: Url = None) -> None:
    """List the harnesses: which there are, and what each cannot do."""
    from roost.cli.environment import connect
    from roost.cli.harnesses import print_harnesses

    with connect(url) as client:
        print_harnesses(client, as_json=json)


NodeName = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="A node's name or id; default this machine's."),
]


@node.command("ls")
def node_ls(json: Json = False, url: Url = None) -> None:
    """List the nodes and their state."""
    from roost.cli.environment import connect
    from roost.cli.nodes import print_nodes

    with connect(url) as client:
        print_nodes(client, as_json=json)


@node.command("drain")
def node_drain(name: NodeName = None, json: Json = False, url: Url = None) -> None:
    """Let a node take no new work, and move its sessions to the others."""
    from roost.cli.environment import connect, is_local
    from roost.cli.nodes import mark_node

    with connect(url) as client:
        mark_node(client, name, drain=True, here=is_local(url), as_json=json)


@node.command("resume")
def node_resume(name: NodeName = None, json: Json = False, url: Url = None) -> None:
    """Let a node that drains work again."""
    from roost.cli.environment import connect, is_local
    from roost.cli.nodes import mark_node

    with connect(url) as client:
        mark_node(client, name, drain=False, here=is_local(url), as_json=json)


@image.command("build")
def image_build(
    base: Annotated[
        str | None,
        typer.Option("--from", help="The base: an image, or a tar file of a file system."),
    ] = None,
    packages: Annotated[
        str | None, typer.Option(help="Debian packages to install, instead of the recipe's.")
    ] = None,
) -> None:
    """Build the image that `docker` sandboxes are made of, and name it as the settings say."""
    from roost.cli.environment import settings
    from roost.cli.images import build_image

    build_image(settings(), base, packages)


@app.command()
def migrate(
    source: Annotated[
        str | None,
        typer.Option("--from", help="`sqlite:///PATH`; default the data directory's `roost.db`."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--to", help="`postgresql://…`, empty; default $ROOST_DATABASE_URL."),
    ] = None,
) -> None:
    """Move everything from a SQLite database to PostgreSQL. Stop the server first."""
    from roost.cli.environment import settings
    from roost.cli.migrate import migrate as run

    run(settings(), source, target)


@blobs.command("adopt")
def blobs_adopt(
    lost: Annotated[
        bool,
        typer.Option(
            "--lost", help="Give up the snapshots, files and skills that are missing there."
        ),
    ] = False,
) -> None:
    """Mark the store of $ROOST_BLOBS_URL as this database's. Stop the server first."""
    from roost.cli.blobs import adopt
    from roost.cli.environment import settings

    adopt(settings(), lost=lost)


@app.command()
def doctor(json: Json = False, url: Url = None) -> None:
    """Check this machine and the server, and say how to fix what does not work."""
    from roost.cli.doctor import examine
    from roost.cli.environment import settings

    raise typer.Exit(examine(settings(url=url), as_json=json))


@app.command()
def version() -> None:
    """Print the version."""
    _print_version(True)
