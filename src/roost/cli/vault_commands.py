"""The commands of `roost vaults`; what they do is imported when they are run."""

from __future__ import annotations

from typing import Annotated

import typer

from roost.cli.options import Json, Url

vaults = typer.Typer(
    help="Make vaults, put secrets into them, replace and remove these.", no_args_is_help=True
)

VaultName = Annotated[
    str, typer.Argument(metavar="VAULT", help="A vault's name, or its id, vlt_….")
]
CredentialId = Annotated[
    str, typer.Argument(metavar="CREDENTIAL", help="A credential's id, vcrd_….")
]


@vaults.command("ls")
def vaults_ls(
    archived: Annotated[
        bool, typer.Option("--all", "-a", help="Show archived vaults too.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many to show.")] = 20,
    json: Json = False,
    url: Url = None,
) -> None:
    """List the vaults you may use, the newest first."""
    from roost.cli.environment import connect
    from roost.cli.vaults import print_vaults

    with connect(url) as client:
        print_vaults(client, archived=archived, limit=limit, as_json=json)


@vaults.command("create")
def vaults_create(
    name: Annotated[str, typer.Argument(help="What to call it.")],
    model_key: Annotated[
        bool, typer.Option("--model-key", help="It is for the key with which a model is asked.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option(help="With --model-key: the harness that runs; default claude.")
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(help="With --model-key: where the model is asked; default its maker's."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A note of your own; may be given more than once."),
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make a vault, without secrets. Sessions get it by name: `roost chat --vault NAME`."""
    from roost.cli.environment import connect
    from roost.cli.vaults import create_vault, metadata_given

    given = metadata_given(metadata or [], model_key=model_key, engine=engine, base_url=base_url)
    with connect(url) as client:
        create_vault(client, name, given, as_json=json)


@vaults.command("show")
def vaults_show(vault: VaultName, json: Json = False, url: Url = None) -> None:
    """Show one vault: its name, what it is for, when it was made."""
    from roost.cli.environment import connect
    from roost.cli.vaults import print_vault

    with connect(url) as client:
        print_vault(client, vault, as_json=json)


@vaults.command("credentials")
def vaults_credentials(
    vault: VaultName,
    archived: Annotated[
        bool, typer.Option("--all", "-a", help="Show archived credentials too.")
    ] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """List the credentials of a vault, without their secrets."""
    from roost.cli.environment import connect
    from roost.cli.vaults import print_credentials

    with connect(url) as client:
        print_credentials(client, vault, archived=archived, as_json=json)


@vaults.command("add")
def vaults_add(
    vault: VaultName,
    mcp: Annotated[
        str | None, typer.Option(metavar="URL", help="It is the token of this MCP server.")
    ] = None,
    variable: Annotated[
        str | None, typer.Option(metavar="NAME", help="Programs find it in this variable.")
    ] = None,
    model_key: Annotated[
        bool, typer.Option("--model-key", help="It is the key of a vault for a model.")
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="With --variable: a host that it may be sent to, such as api.example.org or "
            "*.example.org; may be given more than once."
        ),
    ] = None,
    any_host: Annotated[
        bool, typer.Option("--any-host", help="With --variable: it may be sent to every host.")
    ] = False,
    header: Annotated[
        bool, typer.Option("--header", help="With --variable: put it into headers; the default.")
    ] = False,
    body: Annotated[
        bool, typer.Option("--body", help="With --variable: put it into bodies.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="What to call the credential.")] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Put a secret into a vault. It is typed without being shown, or read from standard input."""
    from roost.cli.environment import connect
    from roost.cli.vaults import SecretUse, add_credential

    auth = SecretUse(mcp, variable, model_key, host or [], any_host, header, body).auth()
    with connect(url) as client:
        add_credential(client, vault, auth, name, as_json=json)


@vaults.command("replace")
def vaults_replace(
    vault: VaultName, credential: CredentialId, json: Json = False, url: Url = None
) -> None:
    """Replace a credential's secret. The new one is typed without being shown, or read from standard input."""
    from roost.cli.environment import connect
    from roost.cli.vaults import replace_secret

    with connect(url) as client:
        replace_secret(client, vault, credential, as_json=json)


@vaults.command("archive")
def vaults_archive(vault: VaultName, json: Json = False, url: Url = None) -> None:
    """Archive a vault: its secrets are gone for good, and new sessions cannot have it."""
    from roost.cli.environment import connect
    from roost.cli.vaults import archive_vault

    with connect(url) as client:
        archive_vault(client, vault, as_json=json)


@vaults.command("archive-credential")
def vaults_archive_credential(
    vault: VaultName, credential: CredentialId, json: Json = False, url: Url = None
) -> None:
    """Archive a credential: its secret is gone for good."""
    from roost.cli.environment import connect
    from roost.cli.vaults import archive_credential

    with connect(url) as client:
        archive_credential(client, vault, credential, as_json=json)


@vaults.command("rm")
def vaults_rm(
    vaults: Annotated[list[str], typer.Argument(metavar="VAULT...", help="Their names or ids.")],
    json: Json = False,
    url: Url = None,
) -> None:
    """Delete vaults with their credentials, for good."""
    from roost.cli.environment import connect
    from roost.cli.vaults import remove_vaults

    with connect(url) as client:
        remove_vaults(client, vaults, as_json=json)


@vaults.command("rm-credential")
def vaults_rm_credential(
    vault: VaultName, credential: CredentialId, json: Json = False, url: Url = None
) -> None:
    """Delete a credential, for good."""
    from roost.cli.environment import connect
    from roost.cli.vaults import remove_credential

    with connect(url) as client:
        remove_credential(client, vault, credential, as_json=json)
