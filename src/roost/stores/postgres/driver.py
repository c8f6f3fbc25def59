"""The one place that knows the driver: how connections are made, and what its errors mean."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import Any, Final, NamedTuple

import anyio
import anyio.lowlevel
import asyncpg

from roost.errors import InvalidRequest, RoostError, Unavailable

Connection = Any
"""The driver's connection, its own or a pool's; the driver ships no types."""


class CommitMark(NamedTuple):
    """A transaction, so that it can be found again: its connection, and its number."""

    writer: str
    batch: int


PATIENCE: Final = 10.0
"""Seconds that an operation waits for a database that is away, before it says so."""

STATEMENT_SECONDS: Final = 30.0
_CONNECT_SECONDS: Final = 5.0
_GOODBYE_SECONDS: Final = 1.0

_SILENT_SECONDS: Final = 8
"""After this long without a sign of life from the other machine, a connection counts as lost."""

_ASK_AFTER: Final = 4  # seconds of silence before the other machine is asked for a sign
_ASK_EVERY: Final = 2
_ASK_TIMES: Final = 2

NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The database's time: nobody else's counts."""

STARTED: Final = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"
"""When the database was started, by the same clock."""

# The connection or the server behind it is gone, or not one that writes: another may do.
_LOST = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
)

# Somebody else was in the way: the same again will do.
_IN_THE_WAY = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
)

# The server's administrator or its limits ended it. The same again would take as long, or as much.
_REFUSED = (asyncpg.InsufficientResourcesError, asyncpg.QueryCanceledError)

_SETTINGS: Final = {
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "2s",  # the locks of a node that was stopped come free
    "jit": "off",
    # Every statement goes along an index. What the planner believes of a table that has just grown
    # must not make it read the whole of it, or of a log.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    # A node whose machine vanished must not keep its locks until the server's own limits, often hours.
    "tcp_keepalives_idle": str(_ASK_AFTER),
    "tcp_keepalives_interval": str(_ASK_EVERY),
    "tcp_keepalives_count": str(_ASK_TIMES),
    "tcp_user_timeout": str(_SILENT_SECONDS * 1000),
}

# For whoever has few statements and uses them all the time. There is one good way for each, whatever its
# values are; and planning what a batch writes takes longer than writing it.
_PLANNED_ONCE: Final = {"plan_cache_mode": "force_generic_plan"}

_DURABLE: Final = """
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') = 'off'
"""


def is_lost(error: Exception) -> bool:
    """Whether the connection failed, and not what was asked of it."""
    return isinstance(error, _LOST) and not _is_unfit(error)


def is_passing(error: Exception) -> bool:
    """Whether the same may work in a moment."""
    return is_lost(error) or isinstance(error, _IN_THE_WAY)


def _is_unfit(error: Exception) -> bool:
    """A value that the database has no place for, such as a text with a zero in it."""
    ours = isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)
    return ours or isinstance(error, asyncpg.DataError)


def explained(error: Exception) -> Exception:
    """The error as callers may see it: the driver's become Roost's, all others stay."""
    if _is_unfit(error):
        ours: RoostError = InvalidRequest(f"the database cannot store that: {first_line(error)}")
    elif is_passing(error) or isinstance(error, _REFUSED):
        ours = Unavailable(
            f"the database refused: {first_line(error)}",
            hint="Nothing was kept. Check the database server and the connection to it.",
        )
    elif isinstance(error, asyncpg.PostgresError):
        ours = RoostError(f"internal database error: {first_line(error)}")
    else:
        return error
    ours.__cause__ = error
    return ours


def first_line(error: Exception) -> str:
    """What the driver says, without the rows and statements that may follow."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def options(name: str, *, planned_once: bool = False) -> Mapping[str, Any]:
    """How connections are made, in the driver's words; `name` is shown in `pg_stat_activity`."""
    settings = {**_SETTINGS, **(_PLANNED_ONCE if planned_once else {}), "application_name": name}
    return {
        "timeout": _CONNECT_SECONDS,
        "command_timeout": STATEMENT_SECONDS,
        "target_session_attrs": "read-write",
        "server_settings": settings,
    }


async def connect(url: str, name: str, *, planned_once: bool = False) -> Connection:
    """One connection. Acknowledged means on disk there, whatever the server's default is.

    `planned_once`: its statements are planned for all values at once, and not each time for those they have.
    """
    connection = await asyncpg.connect(url, **options(name, planned_once=planned_once))
    try:
        _limit_silence(connection._transport.get_extra_info("socket"))  # the driver has no option
        await connection.execute(_DURABLE)
    except BaseException:
        connection.terminate()
        raise
    return connection


def _limit_silence(line: Any) -> None:
    """A network that swallows packets is noticed in seconds; by itself TCP would try for minutes."""
    if line.family == socket.AF_UNIX:
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _ASK_AFTER),
        ("TCP_KEEPINTVL", _ASK_EVERY),
        ("TCP_KEEPCNT", _ASK_TIMES),
        ("TCP_USER_TIMEOUT", _SILENT_SECONDS * 1000),
    ):
        if hasattr(socket, option):  # not every system has all of them
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def close(connection: Connection) -> None:
    """Say goodbye to the server if that is quick; and see the socket closed in any case."""
    with anyio.CancelScope(shield=True):
        try:
            await connection.close(timeout=_GOODBYE_SECONDS)
        except Exception:  # noqa: BLE001 - it is gone, one way or the other
            connection.terminate()
        await anyio.lowlevel.checkpoint()


@lru_cache(maxsize=1000)
def worded(sql: str) -> str:
    """A statement that both databases share, as PostgreSQL has it: `?` and `?2` become `$1` and `$2`, and the
    heads of sessions are columns of `sessions`.
    """
    places = count(1)
    sql = re.sub(r"\?(\d*)", lambda found: f"${found[1] or next(places)}", sql)
    return re.sub(r"\bh\.", "s.", sql.replace(" JOIN heads h ON h.session = s.num", ""))
