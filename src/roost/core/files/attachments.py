"""Files that messages name: kept for the session when it is told, shown to the agent when it hears it.

Before a message is accepted, each file that it names is copied for the session, which keeps the copy until it
is deleted itself: whatever becomes of the original, the message can be handed over, and again after a crash.
The log has the name that the client gave. A crash after the copy and before the entry leaves a copy, which the
next try finds.

    copy (note → bytes → record) → ★ entry → … → the agent is given the bytes

A fork has what its conversation names from the session that it came from, for as long as it lives itself.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
from anyio import CancelScope
from msgspec.structs import replace

from roost.core.files.janitor import FileJanitor
from roost.core.files.store import FileStore
from roost.domain.attachment import (
    MOST_DOCUMENTS,
    MOST_TOGETHER,
    Block,
    check_size,
    named_in,
    shown,
)
from roost.domain.events import Draft, Entry, Micros
from roost.domain.file import file_of
from roost.domain.session import Session
from roost.errors import InvalidRequest, NotFound
from roost.ports.catalog import Record
from roost.ports.harness import Brief, Conversation, Harness, Output
from roost.ports.harness_profile import HarnessProfile
from roost.ports.keys import Key
from roost.ports.sandbox_provider import Mount

_Told = Callable[[Entry], Awaitable[Entry]]
T = TypeVar("T")


class _Named(msgspec.Struct, frozen=True):
    """A file that an event names, and where."""

    file_id: str
    block: Block
    at: str


class Attachments:
    """The files that messages to all sessions name."""

    def __init__(self, store: FileStore, janitor: FileJanitor) -> None:
        self._store = store
        self._janitor = janitor

    def kept(
        self,
        caller: Key,
        session_id: str,
        drafts: Sequence[Draft],
        at: str,
        write: Callable[[], Awaitable[T]],
    ) -> Awaitable[T]:
        """What `write` gives, which writes the drafts. Before, the session is given what they name, mostly
        nothing; if writing fails, it has not got it.

        :raises NotFound: there is no such file, or it is not the caller's to see
        :raises InvalidRequest: no model can be shown it
        """
        named = list(_named(drafts, at)) if any(map(names_files, drafts)) else ()
        return self._written(caller, session_id, named, write) if named else write()

    async def _written(
        self,
        caller: Key,
        session_id: str,
        named: Sequence[_Named],
        write: Callable[[], Awaitable[T]],
    ) -> T:
        async with self._kept(caller, session_id, named):
            return await write()

    @asynccontextmanager
    async def given(
        self, caller: Key, session_id: str, drafts: Sequence[Draft], at: str
    ) -> AsyncGenerator[None, None]:
        """The same for a session that the body makes."""
        named = list(_named(drafts, at))
        if not named:
            yield
            return
        async with (
            self._janitor.making(caller.tenant, session_id),
            self._kept(caller, session_id, named),
        ):
            yield

    @asynccontextmanager
    async def given_again(
        self, caller: Key, source: Session, target: str, until: Micros
    ) -> AsyncGenerator[None, None]:
        """What messages to one session have named up to then, also for one that the body makes."""
        copies = await self._copies(source.tenant, source.id)
        named = [
            copy
            for copy in copies.values()
            if copy.body.get("held") or copy.created_at <= until  # what a fork came with is older
        ]
        if not named:
            yield
            return
        async with self._janitor.making(caller.tenant, target):
            for copy in named:
                await self._store.share(caller, copy, target)
            yield

    @asynccontextmanager
    async def _kept(
        self, caller: Key, session_id: str, named: Sequence[_Named]
    ) -> AsyncGenerator[None, None]:
        made: list[Record] = []
        try:
            await self._keep(caller, session_id, named, made)
            # Whoever is cancelled while it is written has said it all the same, and needs the copies.
            with CancelScope(shield=True):
                yield
        except BaseException:
            with CancelScope(shield=True):
                for copy in made:
                    await self._store.drop(caller.tenant, copy.id)
            raise

    async def _keep(
        self, caller: Key, session_id: str, named: Sequence[_Named], made: list[Record]
    ) -> None:
        there, size = await self._copies(caller.tenant, session_id), 0
        if sum(each.block["type"] == "document" for each in named) > MOST_DOCUMENTS:
            raise InvalidRequest(f"at most {MOST_DOCUMENTS} documents of a request may be files")
        for each in named:
            file = there.get(each.file_id) or await self._file(caller, each)
            size += file_of(file.body).size
            check_size(each.block, file_of(file.body).size, each.at)
            if size > MOST_TOGETHER:
                raise InvalidRequest(
                    f"{each.at}: the files of a request may have {MOST_TOGETHER:,} bytes together"
                )
            await self._shown(file, each)
            if each.file_id not in there:
                there[each.file_id] = copy = await self._store.attach(caller, file, session_id)
                made.append(copy)

    async def _file(self, caller: Key, named: _Named) -> Record:
        try:
            return await self._store.seen(caller, named.file_id)
        except NotFound as missing:
            raise type(missing)(f"{named.at}: {missing.message}") from None

    async def _copies(self, tenant: str, session_id: str) -> dict[str, Record]:
        """What the session has of files that messages have named, by the names they have there."""
        files = await self._store.of_session(tenant, session_id)
        return {record.body["attached"]: record for record in files if record.body.get("attached")}

    async def copy(self, session: Session, file_id: str) -> Record:
        """What the session has of a file that a message has named. :raises NotFound:"""
        copies = await self._copies(session.tenant, session.id)
        if file_id not in copies:
            raise NotFound(f"session {session.id} has no copy of file {file_id}")
        return copies[file_id]

    async def _shown(self, file: Record, named: _Named) -> Block:
        data = b"".join([part async for part in self._store.content(file)])
        return shown(named.block, file_of(file.body).filename, data, named.at)

    async def _original(self, session: Session, file_id: str) -> Record:
        """A file that a log names which came from another session, or from an archive.

        :raises NotFound: there is none, or it is not of whoever made the session: anybody can write an archive
        """
        file = await self._store.get(session.tenant, file_id)
        if file.created_by not in ("", session.spec.created_by):
            raise NotFound(f"file {file_id} was not found")
        return file

    async def told(self, session: Session, entry: Entry) -> Entry:
        """The entry as an agent is given it: with the content of what it names. A file that nobody has any
        more stays a name.

        :raises BlobsFailed: it cannot be read now
        """
        if not names_files(entry):
            return entry
        fields, there = entry.fields, await self._copies(session.tenant, session.id)
        for index, block, file_id in named_in(fields):
            named = _Named(file_id, block, file_id)
            try:
                file = there.get(file_id) or await self._original(session, file_id)
                fields["content"][index] = await self._shown(file, named)
            except (NotFound, InvalidRequest):
                continue
        return replace(entry, body=msgspec.json.encode(fields))


def names_files(event: Entry | Draft) -> bool:
    """Whether it may name a file; quick, since most name none."""
    return event.type == "user.message" and b'"file_id"' in event.body


def _named(drafts: Sequence[Draft], at: str) -> Iterator[_Named]:
    for i, draft in enumerate(drafts):
        if names_files(draft):
            for index, block, file_id in named_in(msgspec.json.decode(draft.body)):
                yield _Named(file_id, block, f"{at}.{i}.content.{index}.source.file_id")


class ShowingFiles:
    """`ports.harness.Harness`, whose agents are given the content of files instead of their names."""

    def __init__(self, inner: Harness, attachments: Attachments) -> None:
        self._inner = inner
        self._attachments = attachments

    @property
    def name(self) -> str:
        """That of the harness inside."""
        return self._inner.name

    @property
    def profile(self) -> HarnessProfile:
        """That of the harness inside."""
        return self._inner.profile

    @property
    def mounts(self) -> Sequence[Mount]:
        """Those of the harness inside."""
        return self._inner.mounts

    def check(self) -> str:
        """That of the harness inside."""
        return self._inner.check()

    def models(self, agent: Mapping[str, Any]) -> Sequence[str]:
        """Those of the harness inside."""
        return self._inner.models(agent)

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        """As its own does. A program has its own record of what it was shown; others read it in the log."""
        told = partial(self._attachments.told, brief.session)
        if self.profile.reads_log or not self.profile.needs_sandbox:
            brief = replace(brief, history=partial(_retold, brief.history, told))
        async with self._inner.open(brief) as conversation:
            yield _Conversation(conversation, told)


async def _retold(history: Callable[[], AsyncIterator[Entry]], told: _Told) -> AsyncIterator[Entry]:
    async for entry in history():
        yield await told(entry)


class _Conversation:
    """The `ports.harness.Conversation` of a harness, with the files that its inputs name in them."""

    def __init__(self, inner: Conversation, told: _Told) -> None:
        self._inner = inner
        self._told = told
        self._interrupted = False

    def turn(self, inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
        if not any(map(names_files, inputs)):
            return self._inner.turn(inputs, again=again)
        self._interrupted = False
        return self._turn(inputs, again=again)

    async def _turn(self, inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
        told = [await self._told(entry) for entry in inputs]
        async with aclosing(self._inner.turn(told, again=again)) as outputs:
            if self._interrupted:  # while the files were read: a turn that begins forgets about it
                await self._inner.interrupt()
            async for output in outputs:
                yield output

    async def up(self) -> bool:
        return await self._inner.up()

    async def interrupt(self) -> None:
        self._interrupted = True
        await self._inner.interrupt()
