"""The commands of `roost environments`; what they do is imported when they are run."""

from __future__ import annotations

from typing import Annotated

import typer

from roost.cli.options import Json, Url

environments = typer.Typer(
    help="List and make environments, and keys for workers.", no_args_is_help=True
)
keys = typer.Typer(
    help="Keys that let workers into a self-hosted environment.", no_args_is_help=True
)
environments.add_typer(keys, name="keys")

Environment = Annotated[
    str, typer.Argument(metavar="ENVIRONMENT", help="An environment's name, or its id, env_….")
]


@environments.command("ls")
def environments_ls(json: Json = False, url: Url = None) -> None:
    """List the environments, the newest first."""
    from roost.cli.environment import connect
    from roost.cli.environments import print_environments

    with connect(url) as client:
        print_environments(client, as_json=json)


@environments.command("create")
def environments_create(
    name: Annotated[str, typer.Argument(help="What to call it.")],
    self_hosted: Annotated[
        bool, typer.Option("--self-hosted", help="Workers elsewhere run the tools.")
    ] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make an environment, and print its id."""
    from roost.cli.environment import connect
    from roost.cli.environments import create_environment

    with connect(url) as client:
        create_environment(client, name, self_hosted=self_hosted, as_json=json)


@keys.command("create")
def keys_create(
    environment: Environment,
    name: Annotated[str, typer.Option(help="What to call the key.")] = "worker",
    json: Json = False,
    url: Url = None,
) -> None:
    """Make a key for workers, and print its secret, which cannot be read again."""
    from roost.cli.environment import connect
    from roost.cli.environments import create_environment_key

    with connect(url) as client:
        create_environment_key(client, environment, name, as_json=json)


@keys.command("ls")
def keys_ls(environment: Environment, json: Json = False, url: Url = None) -> None:
    """List the keys of an environment, the newest first."""
    from roost.cli.environment import connect
    from roost.cli.environments import print_environment_keys

    with connect(url) as client:
        print_environment_keys(client, environment, as_json=json)


@keys.command("revoke")
def keys_revoke(
    environment: Environment,
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, envkey_….")],
    json: Json = False,
    url: Url = None,
) -> None:
    """From now on the key opens nothing, and the workers that use it are cut off."""
    from roost.cli.environment import connect
    from roost.cli.environments import revoke_environment_key

    with connect(url) as client:
        revoke_environment_key(client, environment, key_id, as_json=json)
