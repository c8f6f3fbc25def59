"""`roost migrate`: says on standard error how far it is; a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from contextlib import aclosing
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from roost.config import Settings
from roost.errors import StartupError
from roost.serve.database import is_postgres, sqlite_path
from roost.stores.moving import MoveProgress, move

_OFTEN: Final = 2.0  # seconds between two lines about one table
_DOES: Final = {"copy": "copying", "check": "checking"}


def migrate(settings: Settings, source: str | None, target: str | None) -> None:
    """Move, and say what to do then. :raises StartupError: it is refused, or was cut off"""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    path, url = _path(settings, source), _url(settings, target)
    shown = _Bars(console) if console.is_terminal else _Lines(console)
    with shown:
        anyio.run(_move, path, url, shown)
    console.print(
        f"Start the server with this ROOST_DATABASE_URL and its old data directory. Keep {path} "
        "until you are sure; start no server on it any more."
    )


async def _move(path: Path, url: str, shown: _Lines | _Bars) -> None:
    async with aclosing(move(path, url)) as moving:
        async for progress in moving:
            shown.show(progress)


def _path(settings: Settings, source: str | None) -> Path:
    if source is None:
        return settings.data / "roost.db"
    path = sqlite_path(source)
    if path is None:
        raise StartupError(
            "--from is not sqlite:///PATH",
            hint="A fourth slash if the path is absolute: sqlite:////var/lib/roost/roost.db",
        )
    return path


def _url(settings: Settings, target: str | None) -> str:
    given = settings.database_url.get_secret_value() if settings.database_url else ""
    url = target or given
    if not is_postgres(url):
        raise StartupError(
            "there is no PostgreSQL to move to",
            hint="Name it with --to or ROOST_DATABASE_URL: postgresql://USER:PASSWORD@HOST/NAME",
        )
    return url


class _Lines:
    """For a file or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ("", "")
        self._at = 0.0

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, progress: MoveProgress) -> None:
        if progress.step == "note":
            self._console.print(Text(progress.said))
            return
        what, now = (progress.step, progress.table), time.monotonic()
        if what == self._last and now - self._at < _OFTEN and progress.done < progress.total:
            return
        self._last, self._at = what, now
        done = f"{progress.done:,} of {progress.total:,}"
        self._console.print(Text(f"{_DOES[progress.step]} {progress.table}: {done}"))


class _Bars:
    """For a person: one bar for each table that is copied, and each that is checked."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bars = Bars(*columns, TimeRemainingColumn(), console=console)
        self._tasks: dict[tuple[str, str], int] = {}

    def __enter__(self) -> _Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, progress: MoveProgress) -> None:
        if progress.step == "note":
            self._bars.console.print(Text(progress.said))
            return
        what = (progress.step, progress.table)
        if what not in self._tasks:
            title = f"{_DOES[progress.step]} {progress.table}"
            self._tasks[what] = self._bars.add_task(title, total=progress.total)
        task = self._bars.tasks[self._tasks[what]].id
        self._bars.update(task, completed=progress.done)
