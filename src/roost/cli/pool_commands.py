"""The commands of `roost pool`; what they do is imported when they are run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roost.cli.options import Json, Url

pool = typer.Typer(help="Make pools of interpreters, and run code in them.", no_args_is_help=True)

PoolName = Annotated[str, typer.Argument(metavar="POOL", help="A pool's name.")]
Identifier = Annotated[
    str, typer.Option("--id", help="Which of its sessions: any word. It is made when it is used.")
]
Remote = Annotated[str, typer.Argument(metavar="NAME", help="The file's path below /mnt/data.")]


@pool.command("create")
def pool_create(
    name: Annotated[str, typer.Argument(help="How it is called in paths.")],
    environment: Annotated[
        str | None,
        typer.Option(help="Its environment, by id or name; default one called roost-pool."),
    ] = None,
    cooldown: Annotated[
        int | None,
        typer.Option(help="After so many seconds without a request a session is let go."),
    ] = None,
    max_alive: Annotated[
        int | None, typer.Option(help="After so many seconds it is let go in any case.")
    ] = None,
    max_sessions: Annotated[
        int | None, typer.Option(help="How many sessions there may be at a time.")
    ] = None,
    ready: Annotated[
        int | None, typer.Option(help="How many interpreters each server keeps started.")
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make a pool, and print the address that its clients are given."""
    from roost.cli.environment import connect
    from roost.cli.pools import create_pool

    given = {
        "name": name,
        "cooldown_seconds": cooldown,
        "max_alive_seconds": max_alive,
        "max_sessions": max_sessions,
        "ready_sessions": ready,
    }
    with connect(url) as client:
        create_pool(client, environment, given, as_json=json)


@pool.command("ls")
def pool_ls(json: Json = False, url: Url = None) -> None:
    """List all pools, the newest first."""
    from roost.cli.environment import connect
    from roost.cli.pools import print_pools

    with connect(url) as client:
        print_pools(client, as_json=json)


@pool.command("show")
def pool_show(name: PoolName, json: Json = False, url: Url = None) -> None:
    """Show a pool, and which sessions it has."""
    from roost.cli.environment import connect
    from roost.cli.pools import show_pool

    with connect(url) as client:
        show_pool(client, name, as_json=json)


@pool.command("rm")
def pool_rm(
    names: Annotated[list[str], typer.Argument(metavar="POOL...", help="Their names.")],
    json: Json = False,
    url: Url = None,
) -> None:
    """Delete pools with all their sessions and files, for good."""
    from roost.cli.environment import connect
    from roost.cli.pools import remove_pools

    with connect(url) as client:
        remove_pools(client, names, as_json=json)


@pool.command("run")
def pool_run(
    name: PoolName,
    code: Annotated[
        str | None, typer.Argument(help="The code; without, what comes from a pipe.")
    ] = None,
    identifier: Identifier = "cli",
    shell: Annotated[
        bool, typer.Option("--shell", help="It is a command of the shell, not Python.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--timeout", help="How many seconds it may take, up to 220.")
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Run code, and print what it prints and the value of its last expression."""
    from roost.cli.environment import connect
    from roost.cli.pools import run_code

    limit = {} if seconds is None else {"timeoutInSeconds": seconds}
    with connect(url) as client:
        worked = run_code(client, name, identifier, code, limit, is_shell=shell, as_json=json)
    raise typer.Exit(0 if worked else 1)


@pool.command("files")
def pool_files(
    name: PoolName, identifier: Identifier = "cli", json: Json = False, url: Url = None
) -> None:
    """List the files of a session."""
    from roost.cli.environment import connect
    from roost.cli.pools import print_files

    with connect(url) as client:
        print_files(client, name, identifier, as_json=json)


@pool.command("upload")
def pool_upload(
    name: PoolName,
    file: Annotated[Path, typer.Argument(help="A file of this machine.")],
    remote: Annotated[
        str | None, typer.Option("--as", help="Its path below /mnt/data; default its name.")
    ] = None,
    identifier: Identifier = "cli",
    json: Json = False,
    url: Url = None,
) -> None:
    """Put a file into a session, where its code finds it in /mnt/data."""
    from roost.cli.environment import connect
    from roost.cli.pools import upload_file

    with connect(url) as client:
        upload_file(client, name, identifier, file, remote or file.name, as_json=json)


@pool.command("download")
def pool_download(
    name: PoolName,
    remote: Remote,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to; default its name, here.")
    ] = None,
    identifier: Identifier = "cli",
    url: Url = None,
) -> None:
    """Get a file of a session."""
    from roost.cli.environment import connect
    from roost.cli.pools import download_file

    with connect(url) as client:
        download_file(client, name, identifier, remote, output or Path(Path(remote).name))
