"""The commands of `roost deployment`; what they do is imported when they are run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from roost.cli.options import Json, Url, with_options

deployment = typer.Typer(
    help="Have sessions made again and again, by hand or on a schedule, and see what ran.",
    no_args_is_help=True,
)

DeploymentName = Annotated[
    str, typer.Argument(metavar="DEPLOYMENT", help="A deployment's id, depl_…, or its name.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many to show.")]


def said_of_it(
    name: Annotated[str | None, typer.Option(help="What to call it.")] = None,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="The agent, by id or name, at the version that it has now."),
    ] = None,
    environment: Annotated[str | None, typer.Option(help="The environment, by id or name.")] = None,
    message: Annotated[
        str | None, typer.Option(help="What each session is told to do, as its first message.")
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            help="When it runs by itself, such as '0 9 * * 1-5'; '' for by hand only.",
        ),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(help="The zone of these times, such as Europe/Berlin; at first UTC."),
    ] = None,
    missed: Annotated[
        str | None,
        typer.Option(help="What happens to times at which no server ran: skip, latest or all."),
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="How far back missed times matter, in seconds.")
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option(help="If its last run still works: allow, skip, queue or replace."),
    ] = None,
    vault: Annotated[
        list[str] | None,
        typer.Option(help="A vault of its sessions, by name or id; may be given more than once."),
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(help="The workspace of its sessions; '' for one of their own.")
    ] = None,
    trust: Annotated[
        str | None, typer.Option(help="How far its sessions are trusted: sandboxed, vault or full.")
    ] = None,
    harness: Annotated[
        str | None, typer.Option(help="The program that works as the agent; '' for the usual one.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A note of your own; KEY= removes it. May be repeated."
        ),
    ] = None,
) -> dict[str, Any]:
    """What a deployment is, as the command line says it: for a new one, and for a change."""
    return {name: said for name, said in locals().items() if said is not None}


@deployment.command("ls")
def deployment_ls(
    archived: Annotated[
        bool, typer.Option("--all", "-a", help="Show archived deployments too.")
    ] = False,
    limit: Limit = 20,
    json: Json = False,
    url: Url = None,
) -> None:
    """List deployments, the newest first, and when each runs next."""
    from roost.cli.deployments import print_deployments
    from roost.cli.environment import connect

    with connect(url) as client:
        print_deployments(client, archived=archived, limit=limit, as_json=json)


@deployment.command("show")
def deployment_show(deployment: DeploymentName, json: Json = False, url: Url = None) -> None:
    """Show one deployment: what it runs, when it runs next, why it is paused."""
    from roost.cli.deployments import print_deployment
    from roost.cli.environment import connect

    with connect(url) as client:
        print_deployment(client, deployment, as_json=json)


@deployment.command("create")
@with_options(said_of_it)
def deployment_create(said: dict[str, Any], json: Json = False, url: Url = None) -> None:
    """Make a deployment, and print its id. It needs a name, an agent, an environment and a message."""
    from roost.cli.deployments import create_deployment
    from roost.cli.environment import connect

    with connect(url) as client:
        create_deployment(client, said, as_json=json)


@deployment.command("edit")
@with_options(said_of_it)
def deployment_edit(
    deployment: DeploymentName, said: dict[str, Any], json: Json = False, url: Url = None
) -> None:
    """Change a deployment, for the runs to come. What is not said stays as it is."""
    from roost.cli.deployments import edit_deployment
    from roost.cli.environment import connect

    with connect(url) as client:
        edit_deployment(client, deployment, said, as_json=json)


@deployment.command("run")
def deployment_run(deployment: DeploymentName, json: Json = False, url: Url = None) -> None:
    """Run it now, also if it is paused, and print the id of the session. Exit code 1 if there is none."""
    from roost.cli.deployments import run_deployment
    from roost.cli.environment import connect

    with connect(url) as client:
        if not run_deployment(client, deployment, as_json=json):
            raise typer.Exit(1)


@deployment.command("pause")
def deployment_pause(deployment: DeploymentName, json: Json = False, url: Url = None) -> None:
    """Start nothing by itself until it is unpaused."""
    from roost.cli.deployments import act_on_deployment
    from roost.cli.environment import connect

    with connect(url) as client:
        act_on_deployment(client, deployment, "pause", as_json=json)


@deployment.command("unpause")
def deployment_unpause(deployment: DeploymentName, json: Json = False, url: Url = None) -> None:
    """Go on with its next time. What came while it was paused is not made up for."""
    from roost.cli.deployments import act_on_deployment
    from roost.cli.environment import connect

    with connect(url) as client:
        act_on_deployment(client, deployment, "unpause", as_json=json)


@deployment.command("archive")
def deployment_archive(deployment: DeploymentName, json: Json = False, url: Url = None) -> None:
    """Archive a deployment: it runs no more, for good. Its sessions and runs stay."""
    from roost.cli.deployments import act_on_deployment
    from roost.cli.environment import connect

    with connect(url) as client:
        act_on_deployment(client, deployment, "archive", as_json=json)


@deployment.command("runs")
def deployment_runs(
    deployment: DeploymentName,
    state: Annotated[
        str | None,
        typer.Option(help="Only those that are open, queued, started, failed or skipped."),
    ] = None,
    limit: Limit = 20,
    json: Json = False,
    url: Url = None,
) -> None:
    """List what it ran, what waits and what was skipped and why, the newest first."""
    from roost.cli.deployments import print_runs
    from roost.cli.environment import connect

    with connect(url) as client:
        print_runs(client, deployment, state, limit, as_json=json)
