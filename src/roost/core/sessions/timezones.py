"""Time zones by their IANA names."""

from __future__ import annotations

from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from roost.errors import InvalidRequest


def timezone_of(name: str, at: str) -> ZoneInfo:
    """The zone of this name. :raises InvalidRequest: naming the field `at`"""
    if name not in _names():
        raise InvalidRequest(
            f"{at}: {name[:64]!r} is no time zone",
            hint="Give an IANA name, such as Europe/Berlin or UTC.",
        )
    return ZoneInfo(name)


@cache
def _names() -> frozenset[str]:
    """Asking takes long: all files are looked at."""
    return frozenset(available_timezones())
