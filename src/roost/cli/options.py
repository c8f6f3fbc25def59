"""Options and arguments that many commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Option(
        "--url", help="The server; default $ROOST_URL, else the one of the data directory."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id, sesn_….")]
