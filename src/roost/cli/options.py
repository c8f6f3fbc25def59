"""Options and arguments that many commands have."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

Url = Annotated[
    str | None,
    typer.Option(
        "--url", help="The server; default $ROOST_URL, else the one of the data directory."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id, sesn_….")]


def with_options(
    reader: Callable[..., Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that also has the options of a function, and gets what that makes of them as `said`.

    So several commands can have the same options, which are read in one place.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(signature(command, eval_str=True).parameters)
        del own["said"]
        more = dict(signature(reader, eval_str=True).parameters)

        def run(**given: Any) -> None:
            command(said=reader(**{name: given.pop(name) for name in more}), **given)

        needed = [each for each in own.values() if each.default is Parameter.empty]
        rest = [each for each in own.values() if each.default is not Parameter.empty]
        parameters = [*needed, *more.values(), *rest]
        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
        return run

    return decorated
