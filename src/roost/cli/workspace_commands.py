"""The commands of `roost workspaces`; what they do is imported when they are run."""

from __future__ import annotations

from typing import Annotated

import typer

from roost.cli.options import Json, Url

workspaces = typer.Typer(help="Make, set up, share and remove workspaces.", no_args_is_help=True)

Workspace = Annotated[
    str, typer.Argument(metavar="WORKSPACE", help="A workspace's name, or its id, wksp_….")
]
Quota = Annotated[
    str | None, typer.Option("--quota", help="What its files may take, such as 500MB or 20GB.")
]
KeepSnapshots = Annotated[
    str | None, typer.Option("--keep-snapshots", help="How many snapshots to keep at most.")
]
KeepDays = Annotated[
    str | None, typer.Option("--keep-days", help="For how many days to keep a snapshot at most.")
]
MountScope = Annotated[
    str | None,
    typer.Option(
        "--mount-scope", help="For sessions that name none: workspace, or workspace+vault."
    ),
]
TrustLevels = Annotated[
    str | None, typer.Option("--trust-levels", help="Which are let in, such as sandboxed,vault.")
]
Writers = Annotated[
    str | None,
    typer.Option("--writers", help="allowed: turns overlap; serialised: one after the other."),
]


@workspaces.command("ls")
def workspaces_ls(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many to show.")] = 20,
    json: Json = False,
    url: Url = None,
) -> None:
    """List the workspaces you may use, the newest first."""
    from roost.cli.environment import connect
    from roost.cli.workspaces import print_workspaces

    with connect(url) as client:
        print_workspaces(client, limit=limit, as_json=json)


@workspaces.command("create")
def workspaces_create(
    name: Annotated[str, typer.Argument(help="What to call it.")],
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    quota: Quota = None,
    keep_snapshots: KeepSnapshots = None,
    keep_days: KeepDays = None,
    mount_scope: MountScope = None,
    trust_levels: TrustLevels = None,
    writers: Writers = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make a workspace. Sessions pick it by name: `roost chat --workspace NAME`."""
    from roost.cli.environment import connect
    from roost.cli.workspaces import create_workspace, settings_given

    given = settings_given(quota, keep_snapshots, keep_days, mount_scope, trust_levels, writers)
    with connect(url) as client:
        create_workspace(client, name, description, given, as_json=json)


@workspaces.command("rename")
def workspaces_rename(
    workspace: Workspace,
    name: Annotated[str, typer.Argument(help="What to call it from now on.")],
    json: Json = False,
    url: Url = None,
) -> None:
    """Give a workspace another name. Its sessions stay in it."""
    from roost.cli.environment import connect
    from roost.cli.workspaces import change_workspace

    with connect(url) as client:
        change_workspace(client, workspace, {"name": name}, as_json=json)


@workspaces.command("settings")
def workspaces_settings(
    workspace: Workspace,
    quota: Quota = None,
    keep_snapshots: KeepSnapshots = None,
    keep_days: KeepDays = None,
    mount_scope: MountScope = None,
    trust_levels: TrustLevels = None,
    writers: Writers = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Show a workspace, or change its settings; `default` resets one."""
    from roost.cli.environment import connect
    from roost.cli.workspaces import change_workspace, settings_given

    given = settings_given(quota, keep_snapshots, keep_days, mount_scope, trust_levels, writers)
    with connect(url) as client:
        change_workspace(client, workspace, {"settings": given} if given else {}, as_json=json)


@workspaces.command("share")
def workspaces_share(
    workspace: Workspace,
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="The id of the key to share it with.")
    ] = None,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="With every key of the tenant.")
    ] = False,
    access: Annotated[
        str, typer.Option("--access", help="read, write or admin; none takes it away.")
    ] = "write",
    json: Json = False,
    url: Url = None,
) -> None:
    """Let a key use a workspace, or no longer."""
    from roost.cli.environment import connect
    from roost.cli.workspaces import share_workspace

    with connect(url) as client:
        share_workspace(client, workspace, key, everyone=everyone, access=access, as_json=json)


@workspaces.command("rm")
def workspaces_rm(
    workspaces: Annotated[
        list[str], typer.Argument(metavar="WORKSPACE...", help="Their names or ids.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Also if sessions use it; they lose their files.")
    ] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Delete workspaces with their files and snapshots, for good."""
    from roost.cli.environment import connect
    from roost.cli.workspaces import remove_workspaces

    with connect(url) as client:
        remove_workspaces(client, workspaces, force=force, as_json=json)
