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
Credential = Annotated[
    str,
    typer.Argument(
        metavar="CREDENTIAL",
        help="A credential's id, vcrd_…, its name, its variable or its MCP server.",
    ),
]
Metadata = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A note of your own; may be given more than once."),
]
NewMetadata = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata", metavar="KEY=VALUE", help="A note to set; KEY= removes it. May be repeated."
    ),
]
Host = Annotated[
    list[str] | None,
    typer.Option(
        help="With --variable: a host that it may be sent to, such as api.example.org or "
        "*.example.org; may be given more than once."
    ),
]
ExpiresAt = Annotated[
    str | None,
    typer.Option(metavar="MOMENT", help="When the access token expires: 2027-01-31T12:00:00Z."),
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
    key_header: Annotated[
        str | None,
        typer.Option(help="With --model-key: the header with the key, x-api-key or bearer."),
    ] = None,
    metadata: Metadata = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make a vault, without secrets. Sessions get it by name: `roost chat --vault NAME`."""
    from roost.cli.environment import connect
    from roost.cli.vaults import ModelKey, create_vault, metadata_given

    model = ModelKey(engine, base_url, key_header)
    given = metadata_given(metadata or [], model, model_key=model_key)
    with connect(url) as client:
        create_vault(client, name, given, as_json=json)


@vaults.command("show")
def vaults_show(vault: VaultName, json: Json = False, url: Url = None) -> None:
    """Show one vault: its name, what it is for, when it was made."""
    from roost.cli.environment import connect
    from roost.cli.vaults import print_vault

    with connect(url) as client:
        print_vault(client, vault, as_json=json)


@vaults.command("edit")
def vaults_edit(
    vault: VaultName,
    name: Annotated[str | None, typer.Option(help="What to call it from now on.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="Of a vault for a model: the harness that runs.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Of a vault for a model: where it is asked.")
    ] = None,
    key_header: Annotated[
        str | None,
        typer.Option(help="Of a vault for a model: the header with the key, x-api-key or bearer."),
    ] = None,
    metadata: NewMetadata = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Change a vault's name, metadata or model. An empty value ('') removes what was set."""
    from roost.cli.environment import connect
    from roost.cli.vaults import ModelKey, edit_vault, notes_given

    model, notes = ModelKey(engine, base_url, key_header), notes_given(metadata or [])
    with connect(url) as client:
        edit_vault(client, vault, name, model, notes, as_json=json)


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
    host: Host = None,
    any_host: Annotated[
        bool, typer.Option("--any-host", help="With --variable: it may be sent to every host.")
    ] = False,
    header: Annotated[
        bool, typer.Option("--header", help="With --variable: put it into headers; the default.")
    ] = False,
    body: Annotated[
        bool, typer.Option("--body", help="With --variable: put it into bodies.")
    ] = False,
    oauth: Annotated[
        bool, typer.Option("--oauth", help="With --mcp: the token was got by OAuth.")
    ] = False,
    expires_at: ExpiresAt = None,
    token_endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With --oauth: where it is renewed, by a refresh token."),
    ] = None,
    client_id: Annotated[
        str | None, typer.Option(help="With --token-endpoint: the client that it was given to.")
    ] = None,
    client_auth: Annotated[
        str | None,
        typer.Option(
            help="With --token-endpoint: none (default), client_secret_basic or client_secret_post."
        ),
    ] = None,
    scope: Annotated[
        str | None, typer.Option(help="With --token-endpoint: the scope to ask for.")
    ] = None,
    resource: Annotated[
        str | None, typer.Option(help="With --token-endpoint: the resource to ask for.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call the credential.")] = None,
    metadata: Metadata = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Put a secret into a vault. It is typed without being shown, or read from standard input."""
    from roost.cli.environment import connect
    from roost.cli.vaults import OAuth, SecretReach, SecretUse, add_credential, notes_given

    reach = SecretReach(host or [], any_host, header, body)
    grant = OAuth(oauth, expires_at, token_endpoint, client_id, client_auth, scope, resource)
    auth = SecretUse(mcp, variable, model_key, reach, grant).auth()
    notes = notes_given(metadata or [])
    with connect(url) as client:
        add_credential(client, vault, auth, name, notes, as_json=json)


@vaults.command("edit-credential")
def vaults_edit_credential(
    vault: VaultName,
    credential: Credential,
    name: Annotated[str | None, typer.Option(help="What to call it from now on.")] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A host that a variable's secret may be sent to, instead of those before; may be "
            "given more than once."
        ),
    ] = None,
    any_host: Annotated[
        bool, typer.Option("--any-host", help="A variable's secret may be sent to every host.")
    ] = False,
    header: Annotated[
        bool, typer.Option("--header", help="Put a variable's secret into headers.")
    ] = False,
    body: Annotated[
        bool, typer.Option("--body", help="Put it into bodies; without --header, only there.")
    ] = False,
    scope: Annotated[
        str | None, typer.Option(help="The scope to ask for when an OAuth token is renewed.")
    ] = None,
    metadata: NewMetadata = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Change what is no secret of a credential: its name, or where a variable's secret goes."""
    from roost.cli.environment import connect
    from roost.cli.vaults import SecretReach, edit_credential, notes_given

    reach, notes = SecretReach(host or [], any_host, header, body), notes_given(metadata or [])
    with connect(url) as client:
        edit_credential(client, vault, credential, name, reach, scope, notes, as_json=json)


@vaults.command("replace")
def vaults_replace(
    vault: VaultName,
    credential: Credential,
    expires_at: ExpiresAt = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Replace a credential's secret. The new one is typed without being shown, or read from standard input."""
    from roost.cli.environment import connect
    from roost.cli.vaults import replace_secret

    with connect(url) as client:
        replace_secret(client, vault, credential, expires_at, as_json=json)


@vaults.command("validate")
def vaults_validate(
    vault: VaultName, credential: Credential, json: Json = False, url: Url = None
) -> None:
    """Try an OAuth token at its MCP server, and renew it if it is not accepted."""
    from roost.cli.environment import connect
    from roost.cli.vaults import validate_credential

    with connect(url) as client:
        if not validate_credential(client, vault, credential, as_json=json):
            raise typer.Exit(1)


@vaults.command("archive")
def vaults_archive(vault: VaultName, json: Json = False, url: Url = None) -> None:
    """Archive a vault: its secrets are gone for good, and new sessions cannot have it."""
    from roost.cli.environment import connect
    from roost.cli.vaults import archive_vault

    with connect(url) as client:
        archive_vault(client, vault, as_json=json)


@vaults.command("archive-credential")
def vaults_archive_credential(
    vault: VaultName, credential: Credential, json: Json = False, url: Url = None
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
    vault: VaultName, credential: Credential, json: Json = False, url: Url = None
) -> None:
    """Delete a credential, for good."""
    from roost.cli.environment import connect
    from roost.cli.vaults import remove_credential

    with connect(url) as client:
        remove_credential(client, vault, credential, as_json=json)
