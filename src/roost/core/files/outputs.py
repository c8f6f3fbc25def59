"""Takes what an agent has put into its outputs, and keeps it as files of its session.

Done after each turn, and once more before the next place is opened: a crash in between is made up for
then. What was taken already is known by its path, size and time, so doing it twice is doing it once.
Nothing in the directory is believed: links are not followed, and there are limits to everything.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from tempfile import SpooledTemporaryFile
from typing import IO, Final

import msgspec
from anyio import to_thread
from msgspec.structs import replace

from roost.core.files.store import FileStore
from roost.domain.file import StoredFile, file_of, named
from roost.domain.session import Session
from roost.errors import (
    InvalidRequest,
    NotFound,
    RoostError,
    StorageQuotaExceeded,
    WorkspaceTooLarge,
)
from roost.ports.catalog import Record
from roost.ports.file_exchange import FileExchange
from roost.ports.sessions import Sessions
from roost.ports.tree import Changed, Found, Skipped, Tree

_SPOOLED: Final = 1024 * 1024
_NAMED: Final = 5
_log = logging.getLogger(__name__)


class OutputLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of one session's outputs is kept: files, bytes in all, and bytes of one file."""

    files: int = 500
    total: int = 4 * 1024**3
    largest: int = 500 * 1024**2


class _Taken(msgspec.Struct, frozen=True):
    """A file that is new, or has changed, and its content as it was then."""

    path: str
    mark: str
    data: IO[bytes]


class _Left(msgspec.Struct, frozen=True):
    """Something that is not kept, and why."""

    path: str
    why: str


class Outputs:
    """The outputs of all sessions."""

    def __init__(
        self,
        store: FileStore,
        shown: FileExchange,
        sessions: Sessions,
        bounds: OutputLimits | None = None,
    ) -> None:
        self._store = store
        self._shown = shown
        self._sessions = sessions
        self._bounds = bounds or OutputLimits()
        self._said: dict[str, str] = {}

    async def capture(self, session: Session) -> str | None:
        """Keep what is new; gives in words what was left out, if that was not said the last time.

        Failing is logged, and tried again later.
        """
        tree = self._shown.outputs_tree(session.id)
        root = await to_thread.run_sync(tree.root)
        if root is None or root.empty:
            return None
        try:
            left = await self._captured(session, tree)
        except (RoostError, OSError) as error:
            _log.warning("cannot keep outputs: %s", error, extra=_about(session))
            return None
        if not left:
            self._said.pop(session.id, None)
            return None
        words = ", ".join(f"{each.path} ({each.why})" for each in left[:_NAMED])
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        said = f"outputs were left out: {words}{more}"
        if self._said.get(session.id) == said:
            return None
        self._said[session.id] = said
        _log.warning("%s", said, extra=_about(session))
        return said

    async def _captured(self, session: Session, tree: Tree) -> list[_Left]:
        known = {}
        for record in reversed(await self._store.of_session(session.tenant, session.id)):
            if record.body["origin"] is not None:
                path, mark = msgspec.json.decode(record.body["origin"], type=tuple[str, str])
                known[path] = (mark, record)
        left: list[_Left] = []
        budget = _Budget(self._bounds, [record for _, record in known.values()])
        marks = {path: mark for path, (mark, _) in known.items()}
        with closing(_looked_through(tree, marks, budget)) as found:
            while (each := await to_thread.run_sync(_next, found)) is not None:
                if isinstance(each, _Left):
                    left.append(each)
                    continue
                with each.data:
                    try:
                        await self._keep(session, each)
                    except StorageQuotaExceeded:
                        left.append(_Left(each.path, "over the quota"))
                        continue
                if each.path in known:
                    await self._store.delete(session.tenant, known[each.path][1].id)
        return left

    async def _keep(self, session: Session, taken: _Taken) -> None:
        filename, kind = named(taken.path, None)
        file = StoredFile(filename=filename, mime_type=kind, name=session.id)
        origin = msgspec.json.encode((taken.path, taken.mark)).decode()
        record = await self._store.add(
            session.tenant,
            replace(file, origin=origin),
            taken.data,
            created_by=session.spec.created_by,
        )
        try:
            await self._sessions.get(session.tenant, session.id)
        except NotFound:  # it was deleted meanwhile, and its files with it
            await self._store.drop(session.tenant, record.id)


class _Budget:
    """What may still be kept."""

    def __init__(self, bounds: OutputLimits, known: list[Record]) -> None:
        self._bounds = bounds
        self._files = len(known)
        self._bytes = sum(file_of(record.body).size for record in known)

    def refuses(self, size: int, *, new: bool) -> str | None:
        """Why there is no room for such a file; None if there is."""
        if size > self._bounds.largest:
            return "too large"
        if self._files + new > self._bounds.files:
            return "too many files"
        if self._bytes + size > self._bounds.total:
            return "too many bytes"
        self._files += new
        self._bytes += size
        return None


def _next(found: Iterator[_Taken | _Left]) -> _Taken | _Left | None:
    return next(found, None)


def _looked_through(
    tree: Tree, marks: dict[str, str], budget: _Budget
) -> Generator[_Taken | _Left, None, None]:
    """What is new or cannot be kept. In threads, one step at a time."""
    try:
        for found in tree.walk():
            name = found.path.decode(errors="replace")
            if isinstance(found, Skipped):
                yield _Left(name, found.why)
            elif found.kind == "symlink":
                yield _Left(name, "link")
            elif found.kind == "file":
                yield from _looked_at(tree, found, marks, budget)
    except WorkspaceTooLarge:
        yield _Left("a directory", "too many entries")


def _looked_at(
    tree: Tree, found: Found, marks: dict[str, str], budget: _Budget
) -> Iterator[_Taken | _Left]:
    mark = f"{found.size}.{found.mtime}"
    try:
        path = found.path.decode()
        named(path, None)
    except (UnicodeDecodeError, InvalidRequest):
        yield _Left(found.path.decode(errors="replace"), "name")
        return
    if marks.get(path) == mark:
        return
    if why := budget.refuses(found.size, new=path not in marks):
        yield _Left(path, why)
        return
    data = SpooledTemporaryFile(max_size=_SPOOLED)  # noqa: SIM115 - closed by who takes it
    try:
        _copy(tree, found, data)
    except (Changed, OSError):
        data.close()
        yield _Left(path, "changing")  # the next time
        return
    yield _Taken(path, mark, data)


def _copy(tree: Tree, found: Found, data: SpooledTemporaryFile[bytes]) -> None:
    if found.size > _SPOOLED:
        data.rollover()  # a hole must not be made of memory
    for piece in tree.read(found):
        if isinstance(piece, int):
            data.seek(piece - 1, 1)
            piece = b"\0"
        data.write(piece)
    data.seek(0)


def _about(session: Session) -> dict[str, str]:
    return {"action": "outputs", "session": session.id}
