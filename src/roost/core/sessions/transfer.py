"""Sessions on their way to another server, as an archive: see `domain.archive`.

An archive is made of a session as it was at the end of a turn, as a fork is. Taking one in makes a session as a
fork does, in the same order (`core/sessions/forks`), once all of the archive was checked: a crash before the session
is made leaves nothing but what is removed after a while.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext
from typing import Any, BinaryIO

from anyio import CancelScope, to_thread
from msgspec.structs import replace

from roost.core.sessions.forks import Forks, Place
from roost.core.sessions.lifecycle import Lifecycle
from roost.core.workspaces.local import LocalWorkspaces
from roost.domain.archive import Card
from roost.domain.environment import RESERVED
from roost.domain.events import Entry
from roost.domain.rewinds import hidden, name_at
from roost.domain.session import Session, Spec
from roost.errors import InvalidRequest, NotFound, SandboxUnavailable
from roost.ids import mint
from roost.ports.archives import Archives, Bench
from roost.ports.drafts import new_draft
from roost.ports.harness import Harness
from roost.ports.keys import Key
from roost.ports.log import EventQuery, Log
from roost.ports.notifier import Notifier
from roost.ports.sessions import Planting, Sessions

_PAGE = 1000
_PAGE_BYTES = 4 * 1024 * 1024


class Transfer:
    """Gives sessions away, and takes them in."""

    def __init__(
        self,
        sessions: Sessions,
        log: Log,
        notifier: Notifier,
        lifecycle: Lifecycle,
        forks: Forks,
        archives: Archives,
        *,
        harnesses: Mapping[str, Harness],
        files: LocalWorkspaces,
    ) -> None:
        self._sessions = sessions
        self._log = log
        self._notifier = notifier
        self._lifecycle = lifecycle
        self._forks = forks
        self._archives = archives
        self._harnesses = harnesses
        self._files = files

    async def export(self, caller: Key, session_id: str, at: Place) -> BinaryIO:
        """An archive of the session at the end of a turn: a file without a name, to be read and closed.

        :raises NotFound: the session, or the turn :raises SnapshotGone: the turn's files
        :raises Forbidden: it has more trust than the key may ask for
        """
        session = await self._lifecycle.access.session(caller, session_id, "tell")
        turn = await self._forks.turn(session, at, "at")
        snapshot = await self._forks.snapshot(session, turn)
        shared = await self._forks.shared(session, turn)
        async with self._bench() as bench:
            if snapshot is not None:
                own = self._forks.own_directories(session)
                await self._files.seeding.put_into(bench.tree, snapshot, shared, own)
            await self._write_log(session, turn.last, bench)
            card = _card(session, turn.last, has_files=snapshot is not None)
            return await to_thread.run_sync(bench.pack, card)

    async def _write_log(self, session: Session, end: int, bench: Bench) -> None:
        left_out = hidden(session.state.rewinds, end)
        query = EventQuery(as_of=end, hidden=left_out, limit=_PAGE, most_bytes=_PAGE_BYTES)
        while page := await self._log.page(session.id, query):
            await to_thread.run_sync(bench.log, [entry for entry in page if _travels(entry)])
            query = replace(query, after=page[-1].seq)

    async def taken_in(self, caller: Key, archive: BinaryIO, params: Mapping[str, Any]) -> Session:
        """A session made of an archive. Its agent and environment are this server's.

        :raises BadArchive: :raises TooLarge: nothing was taken in
        :raises RoostError: such a session cannot be made here, see `Lifecycle.create`
        """
        async with self._bench() as bench:
            now = time.time_ns() // 1000
            card = await to_thread.run_sync(bench.unpack, archive, now)
            spec, target = await self._spec(caller, card, params), mint("sesn")
            said: dict[str, Any] = {"session_id": card.session_id} if card.session_id else {}
            if card.vaults:
                said["vaults_left_out"] = card.vaults
            async with (
                self._with_files(spec, bench, target, caller.tenant),
                self._lifecycle.quota.one_more(caller) as most,
            ):
                session = await self._sessions.plant(
                    caller.tenant,
                    target,
                    spec,
                    Planting(card.thread_id, bench.entries()),
                    [new_draft("roost.imported", **said)],
                    max_sessions=most,
                )
        self._notifier.notify(session.id)
        return session

    @asynccontextmanager
    async def _bench(self) -> AsyncGenerator[Bench, None]:
        """A bench; there may be much on it to be removed."""
        with ExitStack() as stack:
            bench = stack.enter_context(self._archives.bench())
            try:
                yield bench
            finally:
                with CancelScope(shield=True):
                    await to_thread.run_sync(stack.close)

    async def _spec(self, caller: Key, card: Card, params: Mapping[str, Any]) -> Spec:
        """What the session is made with. An archive may be made by anybody: whatever gives a session more
        than its own files is the request's to ask for, and neither the archive's nor the environment's.
        """
        trust_level = params.get("trust_level") or "sandboxed"
        asked = {
            "agent": params.get("agent") or card.agent_id,
            "environment_id": params.get("environment_id") or card.environment_id,
            "trust_level": trust_level,
            "mount_scope": params.get("mount_scope") or "workspace",
            "harness": card.harness,
            "title": params.get("title") or card.title,
            "metadata": _harmless(card.metadata),
        }
        for name in ("agent", "environment_id"):
            if not asked[name]:
                raise InvalidRequest(f"{name}: name one of this server; the archive has none")
        try:
            spec = await self._lifecycle.specs.of(caller, asked)
        except NotFound as missing:
            raise type(missing)(
                missing.message, hint="Name an agent and an environment of this server."
            ) from None
        if (
            spec.trust_level != trust_level
        ):  # the environment's fallback, which nobody asked for here
            raise SandboxUnavailable(
                "there is no sandbox for the session, and an import does not choose another kind by itself",
                hint=SandboxUnavailable.hint,
            )
        named = card.sdk_session_id if spec_has_program(spec, self._harnesses) else None
        return replace(spec, sdk_session_id=named, origin=card.origin or card.session_id or None)

    def _with_files(
        self, spec: Spec, bench: Bench, target: str, tenant: str
    ) -> AbstractAsyncContextManager[None]:
        if not spec_has_program(spec, self._harnesses):
            return nullcontext()
        return self._files.seeding.planted(bench.tree, target, tenant)


def spec_has_program(spec: Spec, harnesses: Mapping[str, Harness]) -> bool:
    """Whether such a session has files, and a program that remembers the conversation in them."""
    return harnesses[spec.harness].profile.needs_sandbox


def _harmless(metadata: Mapping[str, str]) -> dict[str, str]:
    """Without the keys that ask for something: a workspace, a trust level, a task."""
    return {key: value for key, value in metadata.items() if not key.startswith(RESERVED)}


def _travels(entry: Entry) -> bool:
    return not entry.queued and entry.type != "roost.rewound"


def _card(session: Session, end: int, *, has_files: bool) -> Card:
    spec = session.spec
    return Card(
        session_id=session.id,
        title=spec.title,
        metadata=spec.metadata,
        harness=spec.harness,
        agent_id=spec.agent.get("id"),
        environment_id=spec.environment_id,
        trust_level=spec.trust_level,
        mount_scope=spec.mount_scope,
        sdk_session_id=name_at(session.state.rewinds, spec.sdk_session_id, end),
        origin=spec.origin or session.id,
        thread_id=session.state.thread_id,
        has_files=has_files,
        vaults=len(spec.vault_ids),
    )
