"""Back to the end of an earlier turn: in another session, or in the same one.

The conversation, the agent's own transcript and the files go back together. The files are those of a snapshot
that has the turn's mark. A workspace that several sessions use is never rewound: a fork gets a copy of it as it
was, in one tree with the transcript, unless it is to stay in there with the files as they are. What is
written, in this order:

a fork  1. a row for its files   2. a hold on each snapshot, and a head that begins with them
        3. ★ the session, with its part of the log   4. the row says that the files are stored
a rewind  1. a hold on the snapshot   2. ★ the entry `roost.rewound`, and where the session stands
          3. when its agent next starts: the head goes back (`Snapshots.rewind`), then the files

Up to ★ nothing has happened for anybody, and what is left of it is removed; from ★ on all has happened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from roost.core.read.large_events import LargeEvents
from roost.core.sessions.harness_choice import Need
from roost.core.sessions.lifecycle import Lifecycle
from roost.core.sessions.trust import Trust
from roost.core.snapshots.snapshots import Origin
from roost.core.workspaces.local import LocalWorkspaces
from roost.core.write.intake import inbox
from roost.domain import ledger
from roost.domain.events import Entry, iso
from roost.domain.rewinds import (
    TELLING,
    ConversationTurn,
    branch_of,
    hidden,
    name_at,
    stretches,
    turns_in,
)
from roost.domain.session import Session, Spec
from roost.domain.snapshot import BEGINNING, Snapshot
from roost.errors import InvalidRequest, NotFound, SnapshotGone
from roost.ids import conversation_id, mint
from roost.ports.drafts import new_draft
from roost.ports.keys import Key
from roost.ports.log import EventQuery, Log, Receipt
from roost.ports.notifier import Notifier
from roost.ports.sessions import Cutting, Rewinding, Sessions

_PAGE = 1000
_PAGE_BYTES = 256 * 1024
_BEGINNINGS = ("roost.forked", "roost.imported")
_REST_AND_WORD = (
    2  # entries after what a log begins with: that it rests, if need be, and where it is from
)

KEEP: Final = "keep"
"""What to ask for to have the files of a shared workspace left as they are."""

Place = int | str | None
"""A turn by its number, or by the id of an event in it; None: the newest one."""


class Forks:
    """Forks and rewinds sessions. `files` are those of agents that have any."""

    def __init__(
        self,
        sessions: Sessions,
        log: Log,
        notifier: Notifier,
        lifecycle: Lifecycle,
        *,
        trust: Trust,
        files: LocalWorkspaces,
    ) -> None:
        self._sessions = sessions
        self._log = log
        self._notifier = notifier
        self._lifecycle = lifecycle
        self._choice = lifecycle.specs.choice
        self._trust = trust
        self._files = files
        self._large = LargeEvents()

    async def turns(self, caller: Key, session_id: str) -> list[dict[str, Any]]:
        """The finished turns of a session's conversation. :raises NotFound:"""
        session = await self._lifecycle.access.session(caller, session_id, "see")
        found = []
        for turn in await self._turns(session, session.state.head):
            end = await self._entry(session, turn.last)
            about = {"number": turn.number, "first_seq": turn.first, "last_seq": turn.last}
            found.append({**about, "event_id": end.id, "ended_at": iso(end.at)})
        return found

    async def fork(
        self, caller: Key, session_id: str, params: Mapping[str, Any], receipt: Receipt | None
    ) -> Session:
        """Another session, as this one was at the end of a turn; with a known receipt, the one made then.

        :raises NotFound: the session, or the turn :raises SnapshotGone: the turn's files
        :raises InvalidRequest: its files cannot be had in this way
        :raises Forbidden: it has more trust than the key may ask for
        :raises QuotaExceeded: the tenant has too many sessions :raises IdempotencyMismatch:
        """
        if receipt and (made := await self._sessions.made(caller.tenant, receipt)):
            return await self._lifecycle.repeated(caller, made)
        session = await self._lifecycle.access.session(caller, session_id, "tell")
        self._choice.check(session.spec.harness, Need("session", "fork"))
        turn = await self.turn(session, params.get("at"), "at")
        end = await self._entry(session, turn.last)
        spec = await self._lifecycle.specs.copied(caller, _forked(session, turn, end, params))
        self._trust.check(caller, spec)
        snapshot, target = await self.snapshot(session, turn), mint("sesn")
        shared = await self.shared(session, turn) if spec.workspace is None else None
        left_out = len(session.spec.vault_ids) - len(spec.vault_ids)
        said = new_draft(
            "roost.forked",
            session_id=session.id,
            event_id=end.id,
            files=spec.workspace is None,
            **({"vaults_left_out": left_out} if left_out else {}),
        )
        async with (
            self._with_files(session, snapshot, target, shared),
            self._lifecycle.given.to_fork(caller, session, target, end.at) as resources,
            self._lifecycle.quota.one_more(caller) as most,
        ):
            fork = await self._sessions.fork(
                caller.tenant,
                target,
                replace(spec, resources=resources),
                Cutting(session.id, stretches(session.state.rewinds, turn.last), turn.rests),
                [said],
                receipt=receipt,
                max_sessions=most,
            )
        self._notifier.notify(fork.id)
        return fork

    async def rewind(self, caller: Key, session_id: str, params: Mapping[str, Any]) -> Session:
        """The same session, as it was at the end of a turn; its log keeps what came after.

        :raises NotFound: the session, or the turn :raises SnapshotGone: the turn's files
        :raises Forbidden: it has more trust than the key may ask for
        :raises SessionClosed: :raises SessionBusy: :raises Conflict: see `ledger.rewind`
        """
        session = await self._lifecycle.access.session(caller, session_id, "tell")
        self._choice.check(session.spec.harness, Need("session", "rewind"))
        ledger.check_rest(session.state)
        turn = await self.turn(session, params["to"], "to")
        files = params.get("files", True) not in (False, KEEP)
        if files:
            _refuse_shared(session.spec)
        # The home of a session in a shared workspace has its transcript, and nothing of the workspace.
        goes_back = files or session.spec.workspace is not None
        snapshot = await self.snapshot(session, turn) if goes_back else None
        lost = goes_back and snapshot is None and self._is_lazy(session)
        if lost and await self._files.has_any(session.id):
            raise SnapshotGone(
                f"the session had no files yet at the end of turn {turn.number}, and has some now",
                hint='Rewind with `"files": false`: they stay as they are.',
            )
        if snapshot is not None:
            await self._files.pin(session.id, snapshot)
        rewinding = await self._rewinding(session, turn, snapshot, files=files)
        after = await self._sessions.rewind(caller.tenant, session.id, rewinding)
        self._notifier.notify(session.id)
        self._notifier.notify(inbox(session.id))  # an agent that is kept for it remembers too much
        return after

    async def _rewinding(
        self, session: Session, turn: ConversationTurn, snapshot: Snapshot | None, *, files: bool
    ) -> Rewinding:
        spec, state = session.spec, session.state
        if snapshot is not None:
            name = name_at(state.rewinds, spec.sdk_session_id, turn.last)
        else:  # one that its program has never heard of: it is told the conversation anew
            name = conversation_id(mint("sesn")) if spec.sdk_session_id else None
        end = await self._entry(session, turn.last)
        said = new_draft(
            "roost.rewound",
            to={"event_id": end.id, "seq": turn.last, "turn": turn.number},
            files=files and snapshot is not None,
        )
        mark = 0 if snapshot is None else snapshot.mark
        return Rewinding(state.head, turn.last, mark, replace(spec, sdk_session_id=name), said)

    def _with_files(
        self, source: Session, snapshot: Snapshot | None, target: str, shared: Origin | None
    ) -> AbstractAsyncContextManager[None]:
        if snapshot is None:
            return nullcontext()
        own = self.own_directories(source)
        return self._files.seeding.forked(source.id, snapshot, target, shared, own)

    async def shared(self, session: Session, turn: ConversationTurn) -> Origin | None:
        """The files that a turn has left in the workspace it shares; None if it does not, or has none.

        :raises SnapshotGone:
        """
        workspace = session.spec.workspace
        if workspace is None or not self._has_files(session):
            return None
        found = await self._files.snapshot_of(workspace, turn.first, turn.last, session.id)
        if found is None:
            raise SnapshotGone(
                f"the workspace's files as turn {turn.number} has left them are not kept",
                hint='A fork with `files: "keep"` stays in the workspace, with the files as they are now.',
            )
        return workspace, found

    def _has_files(self, session: Session) -> bool:
        profile = self._choice.declared(session.spec.harness)
        return profile is None or profile.needs_sandbox

    def own_directories(self, session: Session) -> Collection[str]:
        """The directories in its home that belong to its agent's program."""
        profile = self._choice.declared(session.spec.harness)
        return () if profile is None else profile.own_directories

    async def snapshot(self, session: Session, turn: ConversationTurn) -> Snapshot | None:
        """The files of a turn; None if its agent has none. :raises SnapshotGone:"""
        if not self._has_files(session):
            return None
        lazy = self._is_lazy(session)
        for each in reversed(await self._turns(session, turn.last) if lazy else [turn]):
            if (found := await self._kept(session, each)) is not None:
                return found
            if not lazy or await self._used_files(session, each):
                raise SnapshotGone(f"the files as turn {turn.number} has left them are not kept")
        return None  # no turn has had any

    async def _kept(self, session: Session, turn: ConversationTurn) -> Snapshot | None:
        found = await self._files.snapshot_of(session.id, turn.first, turn.last)
        if found is None and await self._began_after(session, turn):
            return await self._files.snapshot_of(session.id, BEGINNING, BEGINNING)
        return found

    def _is_lazy(self, session: Session) -> bool:
        """Whether a turn may have had no sandbox, and left the files as it found them."""
        profile = self._choice.declared(session.spec.harness)
        return profile is not None and profile.on_demand and session.spec.workspace is None

    async def _used_files(self, session: Session, turn: ConversationTurn) -> bool:
        """Whether an agent has used its sandbox in a turn: it notes that before it does."""
        after = turn.first - 1
        while after < turn.last:
            page = await self._log.read(session.id, after, turn.last - after, _PAGE_BYTES)
            if any(e.type == "roost.tool_started" and e.fields["sandbox"] for e in page):
                return True
            after = page[-1].seq
        return False

    async def _began_after(self, session: Session, turn: ConversationTurn) -> bool:
        """Whether the session has this turn, as its last one, from where it comes from."""
        query = EventQuery(types=_BEGINNINGS, order="desc", limit=1)
        said = await self._log.page(session.id, query)
        return bool(said) and turn.last < said[0].seq <= turn.last + _REST_AND_WORD

    async def turn(self, session: Session, place: Place, field: str) -> ConversationTurn:
        """The turn that a request names, or the last one that has ended.

        :raises NotFound: there is no such turn
        :raises InvalidRequest: no turn has ended
        """
        if isinstance(place, str):
            return await self._turn_with(session, place, field)
        turns = await self._turns(session, session.state.head)
        if not turns:
            raise InvalidRequest("no turn of this session has ended yet")
        number = turns[-1].number if place is None else place
        if not 1 <= number <= len(turns):
            raise NotFound(f"{field}: the session has turns 1 to {len(turns)}, and no {number}")
        return turns[number - 1]

    async def _turn_with(self, session: Session, event_id: str, field: str) -> ConversationTurn:
        seq = await self._log.seq_of(session.id, event_id)
        if seq is None:
            raise NotFound(f"{field}: the session has no event {event_id}")
        state = session.state
        turns = await self._turns(session, branch_of(state.rewinds, state.head, seq))
        for turn in turns:
            if turn.first <= seq <= turn.last:
                return turn
        raise NotFound(
            f"{field}: event {event_id} is not part of a turn that has ended",
            hint="Name an event of the turn itself, such as its message, or the turn's number.",
        )

    async def _turns(self, session: Session, end: int) -> list[ConversationTurn]:
        """Of the conversation whose last entry is `end`."""
        query = EventQuery(
            types=TELLING,
            as_of=end,
            hidden=hidden(session.state.rewinds, end),
            limit=_PAGE,
            most_bytes=_PAGE_BYTES,
        )
        outline: list[Entry] = []
        while True:
            async with self._large.page(partial(self._log.page, session.id, query)) as page:
                if not page:
                    return turns_in(outline)
                query = replace(query, after=page[-1].seq)
                outline += [_without_text(e) for e in page if not (e.queued or e.withdrawn)]

    async def _entry(self, session: Session, seq: int) -> Entry:
        return (await self._log.read(session.id, seq - 1, 1))[0]


def _without_text(entry: Entry) -> Entry:
    """The entry as far as turns are told from it: what was said in all of a conversation is too much."""
    return entry if entry.type == "session.status_idle" else replace(entry, body=b"{}")


def _forked(
    session: Session, turn: ConversationTurn, end: Entry, params: Mapping[str, Any]
) -> Spec:
    """What the fork is made with: as the session was. In a workspace that others use, it is one more of
    them only if that was asked for.
    """
    spec, rewinds = session.spec, session.state.rewinds
    stays = params.get("files") == KEEP
    _check_files(spec, stays=stays)
    return replace(
        spec,
        title=params.get("title", spec.title),
        workspace=spec.workspace if stays else None,
        sdk_session_id=name_at(rewinds, spec.sdk_session_id, turn.last),
        forked_from={"session_id": session.id, "event_id": end.id},
        origin=spec.origin or session.id,
    )


def _refuse_shared(spec: Spec) -> None:
    if spec.workspace is not None:
        raise InvalidRequest(
            "files: the session's workspace is one that others use, and is not rewound",
            hint='Send `files: "keep"` to rewind the conversation alone, or fork the session: '
            "a fork gets a copy of the files as they were.",
        )


def _check_files(spec: Spec, *, stays: bool) -> None:
    if stays and spec.workspace is None:
        raise InvalidRequest(
            "files: the session shares no workspace that its fork could stay in",
            hint="Omit it: the fork gets a copy of the files as they were.",
        )
    if not stays and spec.workspace is not None and spec.trust_level != "sandboxed":
        raise InvalidRequest(
            f"files: a {spec.trust_level!r} session without a shared workspace works in the vault, "
            "and cannot have a copy of the workspace",
            hint='Send `files: "keep"` for a fork in the workspace, with the files as they are now.',
        )
