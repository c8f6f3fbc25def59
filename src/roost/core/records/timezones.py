"""Time zones by their IANA names, by the rules of the package `tzdata` and no others.

The machine may have rules of its own, older or newer. Nodes that go by theirs would plan different times for one
schedule; the lock file names one version for all of them.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from zoneinfo import ZoneInfo

from roost.errors import InvalidRequest


def timezone_of(name: str, at: str) -> ZoneInfo:
    """The zone of this name. :raises InvalidRequest: naming the field `at`"""
    if name not in _names():
        raise InvalidRequest(
            f"{at}: {name[:64]!r} is no time zone",
            hint="Give an IANA name, such as Europe/Berlin or UTC.",
        )
    return _zone(name)


@cache
def _names() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text().split())


@cache
def _zone(name: str) -> ZoneInfo:
    # Its constructor would look at the machine's files first.
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as rules:
        return ZoneInfo.from_file(rules, key=name)
