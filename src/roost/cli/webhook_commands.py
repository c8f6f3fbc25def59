"""The commands of `roost webhooks`; what they do is imported when they are run."""

from __future__ import annotations

from typing import Annotated

import typer

from roost.cli.options import Json, Url

webhooks = typer.Typer(
    help="Have servers elsewhere told what happens, and see what was sent.", no_args_is_help=True
)

WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="A webhook's id, wh_….")]
Event = Annotated[
    list[str] | None,
    typer.Option(
        help="A type of events to send, such as session.idled; may be given more than once. "
        "Without: all."
    ),
]
NewEvent = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        help="A type of events to send from now on, or * for all; may be given more than once.",
    ),
]
Name = Annotated[str | None, typer.Option(help="What to call it.")]


@webhooks.command("ls")
def webhooks_ls(json: Json = False, url: Url = None) -> None:
    """List all webhooks, the oldest first."""
    from roost.cli.environment import connect
    from roost.cli.webhooks import print_webhooks

    with connect(url) as client:
        print_webhooks(client, as_json=json)


@webhooks.command("create")
def webhooks_create(
    address: Annotated[
        str, typer.Argument(help="Where events are sent, such as https://example.com/hook.")
    ],
    event: Event = None,
    name: Name = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Make a webhook, and print its id and its signing secret, which cannot be read again."""
    from roost.cli.environment import connect
    from roost.cli.webhooks import create_webhook

    given = {"url": address, "enabled_events": event, "name": name}
    with connect(url) as client:
        create_webhook(client, given, as_json=json)


@webhooks.command("edit")
def webhooks_edit(
    webhook: WebhookId,
    address: Annotated[str | None, typer.Option(help="Where events are sent from now on.")] = None,
    event: NewEvent = None,
    name: Name = None,
    enable: Annotated[
        bool | None,
        typer.Option("--enable/--disable", help="Send to it again; --disable: no more."),
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Change a webhook. One that is enabled again begins with what was held for it."""
    from roost.cli.environment import connect
    from roost.cli.webhooks import edit_webhook

    state = None if enable is None else "enabled" if enable else "disabled"
    given = {"url": address, "enabled_events": event, "name": name, "state": state}
    with connect(url) as client:
        edit_webhook(client, webhook, given, as_json=json)


@webhooks.command("rotate")
def webhooks_rotate(
    webhook: WebhookId,
    overlap: Annotated[
        int | None,
        typer.Option(min=0, help="For how many seconds the old secret also signs; default a day."),
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Give a webhook another signing secret, and print it."""
    from roost.cli.environment import connect
    from roost.cli.webhooks import rotate_secret

    with connect(url) as client:
        rotate_secret(client, webhook, overlap, as_json=json)


@webhooks.command("rm")
def webhooks_rm(webhook: WebhookId, json: Json = False, url: Url = None) -> None:
    """Remove a webhook, with what was to be sent to it."""
    from roost.cli.environment import connect
    from roost.cli.webhooks import remove_webhook

    with connect(url) as client:
        remove_webhook(client, webhook, as_json=json)


@webhooks.command("deliveries")
def webhooks_deliveries(
    webhook: WebhookId,
    state: Annotated[
        str | None,
        typer.Option(help="Only those that are pending, delivered, failed or held."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many to show.")] = 20,
    json: Json = False,
    url: Url = None,
) -> None:
    """List what was sent to a webhook, or is to be, the newest first."""
    from roost.cli.environment import connect
    from roost.cli.webhooks import print_deliveries

    with connect(url) as client:
        print_deliveries(client, webhook, state, limit, as_json=json)


@webhooks.command("replay")
def webhooks_replay(
    webhook: WebhookId,
    event: Annotated[
        str | None,
        typer.Option(help="The id of one event, whe_…. Without: all that were given up."),
    ] = None,
    json: Json = False,
    url: Url = None,
) -> None:
    """Send again, with the same ids, what was given up, or one event."""
    from roost.cli.environment import connect
    from roost.cli.webhooks import replay

    with connect(url) as client:
        replay(client, webhook, event, as_json=json)
