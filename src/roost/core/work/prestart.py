"""Agents that are started before their session is made.

The next session is likely to be like the last one: of the same tenant, agent and environment. So an agent
for it is started while nobody waits: in a place of its own, under an id that no session has yet. A
session that is then made with exactly the same definition gets that id, and with it the agent.
Some are kept in any case, because somebody has said which: see `Prestart.keep`.

Nothing depends on this. What is started here has been told nothing and is known by nobody; when the
server dies it is gone, and a session that was given its id starts an agent like any other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec.structs import replace

from roost.core.sandbox.planner import SandboxSystem
from roost.core.sandbox.reports import SandboxReports
from roost.core.sandbox.sandboxes import Sandboxes
from roost.core.work.inputs import history
from roost.core.work.start_limit import StartLimit
from roost.domain.budget import Budget, Spent
from roost.domain.events import Draft
from roost.domain.session import Lease, Session, Spec
from roost.errors import NotFound, PackagesFailed, RoostError, SandboxFailed, Unavailable
from roost.ids import mint
from roost.ports.egress import Networking, RefusalReport
from roost.ports.harness import Brief, Conversation, Harness, StartMode
from roost.ports.log import Log
from roost.ports.notifier import Notifier
from roost.ports.sessions import Sessions

_log = logging.getLogger(__name__)
_PRESTART = "prestart"  # the topic notified when there may be something to start or to end
_QUIET = 1.0  # seconds after a session was made; what it does comes first
_LOOK_AGAIN = 1.0
_COMES_UP_WITHIN = 60.0
_TRIES_AGAIN = 30.0  # seconds after one has failed to start; each time twice as many
_LONGEST_PAUSE = 960.0
_GENERATION = 1  # a session's first; a later one has a past that this agent does not know


class PrestartedAgent:
    """An agent for a session like `like`, which has its id.

    Until a session takes it, whatever its place is refused is nobody's to hear.
    """

    def __init__(self, like: Session) -> None:
        self.session = like
        self.networking = Networking()
        self.system = SandboxSystem()
        self.since = anyio.current_time()
        self.conversation: Conversation | None = None
        self.reports: SandboxReports | None = None  # of the session that has taken it
        self.over = anyio.Event()
        self.closed = anyio.Event()

    async def refused(self, refused: RefusalReport) -> None:
        """Its place was refused something."""
        if self.reports is not None:
            await self.reports.refused(refused)

    async def spent(self, spent: Spent) -> None:
        """Something in its place has asked the model."""
        if self.reports is not None:
            await self.reports.spent(spent)

    async def lacks(self, lack: Draft) -> None:
        """It goes on without something."""
        if self.reports is not None:
            await self.reports.lacks(lack)

    async def allowed(self) -> Budget:
        """What may be spent in its place by now."""
        return Budget(max_requests=0) if self.reports is None else await self.reports.allowed()

    async def is_up(self) -> bool:
        """Whether it can be given away."""
        if self.conversation is None or self.over.is_set():
            return False
        return await self.conversation.up()

    async def until_over(self) -> None:
        """Wait until nobody needs it any more; or until it has died, while nobody uses it."""
        while not self.over.is_set() and (self.reports is not None or await self.is_up()):
            with anyio.move_on_after(_LOOK_AGAIN):
                await self.over.wait()

    async def end(self) -> None:
        """End it, and wait until nothing of it is left."""
        self.over.set()
        with anyio.CancelScope(shield=True):
            await self.closed.wait()


class FailedStart(NamedTuple):
    """Agents for sessions like `like` do not start, so often in a row; the next one is tried at `until`."""

    like: Session
    times: int
    until: float


class FailedStarts:
    """Which agents are not started for now: those that fail wait longer and longer."""

    def __init__(self) -> None:
        self._failed: list[FailedStart] = []

    def __len__(self) -> int:
        return len(self._failed)

    def add(self, like: Session) -> None:
        """One has failed."""
        now = anyio.current_time()
        before = next((each.times for each in self._failed if _alike(each.like, like)), 0)
        pause = min(_TRIES_AGAIN * 2**before, _LONGEST_PAUSE)
        self.remove(like)
        # What nobody has tried again for long is forgotten.
        self._failed = [each for each in self._failed if now < each.until + 2 * _LONGEST_PAUSE]
        self._failed = [*self._failed[-99:], FailedStart(like, before + 1, now + pause)]

    def remove(self, like: Session) -> None:
        """One has started."""
        self._failed = [each for each in self._failed if not _alike(each.like, like)]

    def waits(self, like: Session) -> bool:
        """Whether one is not to be tried yet."""
        now = anyio.current_time()
        return any(now < each.until and _alike(each.like, like) for each in self._failed)


@dataclass(frozen=True, kw_only=True)
class PrestartSettings:
    """`size`: as many agents are kept as the last so many sessions would take. `seconds`: how long one is
    kept that nobody wants. `notes`: a directory of the server's own; an agent that is noted there and has
    no session was left behind.
    """

    size: int
    seconds: float
    notes: Path


class Offer:
    """The id that a session is to be made with. `accepted`: it was."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.accepted = False


class Prestart:
    """The agents of this node that are started before their session is made.

    `room` says how many idle agents may be kept.
    """

    def __init__(
        self,
        log: Log,
        sessions: Sessions,
        notifier: Notifier,
        harnesses: Mapping[str, Harness],
        sandboxes: Sandboxes,
        limit: StartLimit,
        settings: PrestartSettings,
        room: Callable[[], int],
    ) -> None:
        self._log = log
        self._sessions = sessions
        self._notifier = notifier
        self._harnesses = harnesses
        self._sandboxes = sandboxes
        self._limit = limit
        self._notes = settings.notes
        self._seconds = settings.seconds
        self._room = room
        self._recent: deque[tuple[float, Session]] = deque(maxlen=settings.size)
        self._kept: Sequence[Session] = ()  # such as are wanted in any case
        self._failed = FailedStarts()
        self._spares: list[PrestartedAgent] = []  # for anybody who fits, oldest first
        self._given: dict[
            str, PrestartedAgent
        ] = {}  # to sessions that have not yet worked, oldest first

    def __len__(self) -> int:
        return sum(spare.conversation is not None for spare in self._spares)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Start agents, and end those nobody wants, until cancelled."""
        await self._sweep()
        async with anyio.create_task_group() as tasks:
            task_status.started()
            with self._notifier.subscribe(_PRESTART) as subscription:
                while True:
                    self._tidy()
                    self._start_one(tasks)
                    await subscription.until_notified(_LOOK_AGAIN)

    def keep(self, likes: Sequence[Session]) -> None:
        """From now on, keep an agent for a session like each of these, whether or not one was made lately."""
        if likes != self._kept:
            self._kept = likes
            self._notifier.notify(_PRESTART)

    @asynccontextmanager
    async def offer(self, tenant: str, spec: Spec) -> AsyncGenerator[Offer, None]:
        """An id for a session: that of an agent that fits, or a new one.

        If the body is cancelled, or the store does not know, the session may have been made all the same,
        and its agent is for nobody else. It is let go like that of any session that never works.
        """
        spare = await self._fitting(tenant, spec)
        offer = Offer(spare.session.id if spare else mint("sesn"))
        was_refused = False
        try:
            yield offer
            was_refused = not offer.accepted
        except RoostError as error:
            was_refused = not offer.accepted and not isinstance(error, Unavailable)
            raise
        finally:
            if spare is not None:
                self._settle(spare, offer, was_refused)

    def _settle(self, spare: PrestartedAgent, offer: Offer, was_refused: bool) -> None:
        if offer.accepted:
            self._note(offer.session_id).unlink(missing_ok=True)
        if spare.closed.is_set():
            return  # it died meanwhile
        if was_refused:
            self._spares.append(spare)
        else:
            self._given[offer.session_id] = spare
            spare.since = anyio.current_time()

    def made(self, session: Session) -> None:
        """A session was made; the next one may be like it."""
        if _can_be_foreseen(session.spec) and self._can_prestart(session):
            if not any(_alike(session, like) for like in self._kept):
                self._recent.append((anyio.current_time(), session))
            self._notifier.notify(_PRESTART)

    @asynccontextmanager
    async def taken(
        self, lease: Lease, session: Session, reports: SandboxReports
    ) -> AsyncGenerator[Conversation | None, None]:
        """The agent that was started for this session, if it was and is still what it should be.

        It is ended with the context, or before it begins.
        """
        spare = self._given.pop(session.id, None)
        if spare is None:
            yield None
            return
        try:
            spare.reports = reports
            fits = lease.generation == _GENERATION and await self._fits(spare, session)
            if not fits:
                await spare.end()
            yield spare.conversation if fits else None
        finally:
            await spare.end()

    def drop(self, session_id: str) -> None:
        """Its session will not work any more; if it does after all, it waits until its agent is gone."""
        if spare := self._given.get(session_id):
            spare.over.set()

    async def _fitting(self, tenant: str, spec: Spec) -> PrestartedAgent | None:
        """One for such a session, not among the others any more."""
        for spare in list(self._spares):
            like = replace(spare.session, tenant=tenant, spec=spec)
            if spare not in self._spares or spare.conversation is None:
                continue  # another one was quicker, or it is not up yet
            if not _alike(spare.session, like):
                continue
            self._spares.remove(spare)
            fits = False
            try:
                fits = await self._fits(spare, like)
            finally:
                if not fits:  # also when cancelled here: nobody else knows of it by now
                    spare.over.set()
            if fits:
                return spare
        return None

    async def _fits(self, spare: PrestartedAgent, session: Session) -> bool:
        if not _alike(spare.session, session):
            return False
        try:
            is_same = spare.system == await self._named(session)
        except SandboxFailed:
            return False
        return (
            is_same
            and spare.networking == await self._sandboxes.belongings.networking(session)
            and await spare.is_up()
        )

    async def _named(self, session: Session) -> SandboxSystem:
        """What such a session is to have as its system by now. :raises SandboxFailed:"""
        provider = self._sandboxes.offered.provider_for(session.spec)
        return await self._sandboxes.packages.named(session, provider)

    def _tidy(self) -> None:
        """Let go of what is too old, or more than there is room for."""
        before = anyio.current_time() - self._seconds
        while self._recent and self._recent[0][0] < before:
            self._recent.popleft()
        spares = self._unwanted()
        living = [id for id, spare in self._given.items() if not spare.over.is_set()]
        given = [id for id in living if self._given[id].since < before]
        surplus = len(self._spares) + len(living) - max(0, self._room())
        spares += [spare for spare in self._spares if spare not in spares][: max(0, surplus)]
        given += living[: max(0, surplus - len(self._spares))]
        for spare in spares:
            self._spares.remove(spare)
            spare.over.set()
        for session_id in given:
            self.drop(session_id)

    def _unwanted(self) -> list[PrestartedAgent]:
        wanted = [*self._kept, *(session for _, session in self._recent)]
        found = []
        for spare in self._spares:
            like = next((session for session in wanted if _alike(session, spare.session)), None)
            if like is None:
                found.append(spare)
            else:
                wanted.remove(like)
        return found

    def _start_one(self, tasks: TaskGroup) -> None:
        """Start one that is missing, if nobody else has anything to start."""
        if len(self._limit) or len(self._spares) + len(self._given) >= self._room():
            return
        here = list(self._spares)
        for session in self._missed():
            spare = next((spare for spare in here if _alike(spare.session, session)), None)
            if spare is None:
                self._spares.append(PrestartedAgent(_foreseen(session)))
                tasks.start_soon(self._keep, self._spares[-1])
                return
            here.remove(spare)

    def _missed(self) -> list[Session]:
        """What there should be an agent for by now, the likeliest first."""
        is_quiet = bool(self._recent) and anyio.current_time() >= self._recent[-1][0] + _QUIET
        recent = [session for _, session in reversed(self._recent)] if is_quiet else []
        return [session for session in (*self._kept, *recent) if not self._failed.waits(session)]

    async def _keep(self, spare: PrestartedAgent) -> None:
        """Start an agent and keep it until it is over."""
        session = spare.session
        try:
            spare.networking = await self._sandboxes.belongings.networking(session)
            self._note(session.id).touch()
            await self._keep_open(spare)
        except Exception as error:  # noqa: BLE001 - nobody waits for it; a session finds out why
            _log.warning("no agent ahead: %s", error, extra={"action": "prestart"})
            self._failed.add(session)
            kept = [each for each in self._recent if not _alike(each[1], session)]
            self._recent = deque(kept, maxlen=self._recent.maxlen)
        finally:
            if spare in self._spares:
                self._spares.remove(spare)
            if self._given.get(session.id) is spare:
                del self._given[session.id]
            spare.closed.set()
            with anyio.CancelScope(shield=True):
                await self._forget(session.id)

    async def _keep_open(self, spare: PrestartedAgent) -> None:
        session = spare.session
        harness = self._harnesses[session.spec.harness]
        past = partial(history, self._log, session)
        brief = Brief(session, past, StartMode.FRESH_AHEAD)
        lease = Lease(session.id, _PRESTART, _GENERATION)
        spare.system = await self._sandboxes.system(session, spare.lacks)
        if spare.system != await self._named(session):
            raise PackagesFailed("no session would be given an agent without its packages")
        await self._limit.begin(session.id)
        try:
            async with (
                self._sandboxes.open(lease, brief, harness, spare, spare.system) as ready,
                harness.open(ready) as conversation,
            ):
                with anyio.fail_after(_COMES_UP_WITHIN):
                    await conversation.up()
                self._limit.end(session.id)
                self._failed.remove(session)
                spare.conversation = conversation
                self._notifier.notify(_PRESTART)
                await spare.until_over()
        finally:
            self._limit.end(session.id)

    async def _sweep(self) -> None:
        """Remove what a server that was killed has left behind."""
        self._notes.mkdir(parents=True, exist_ok=True)
        for note in list(self._notes.iterdir()):
            await self._forget(note.name)

    async def _forget(self, session_id: str) -> None:
        """Remove the directory of a session that never was, if it was noted and never was."""
        note = self._note(session_id)
        if not note.exists():
            return
        try:
            await self._sessions.find(session_id)
        except NotFound:
            try:
                await self._sandboxes.remove(session_id)
            except OSError:
                # The note stays, so that the next start tries again: cleaning up stops no server.
                _log.exception("cannot remove a directory", extra={"session": session_id})
                return
        note.unlink(missing_ok=True)

    def _note(self, session_id: str) -> Path:
        return self._notes / session_id

    def _can_prestart(self, session: Session) -> bool:
        return self._harnesses[session.spec.harness].profile.abilities.prestart


def _foreseen(session: Session) -> Session:
    """One that is like it, as far as its agent is concerned."""
    return replace(session, id=mint("sesn"), spec=_essence(session.spec))


def _alike(one: Session, other: Session) -> bool:
    """Whether the same agent would do for both. Never for two tenants."""
    return one.tenant == other.tenant and _essence(one.spec) == _essence(other.spec)


def _essence(spec: Spec) -> Spec:
    """Without what its agent is not told, and without the name that follows from the session's id."""
    return replace(spec, title=None, metadata={}, sdk_session_id=None, created_by="")


def _can_be_foreseen(spec: Spec) -> bool:
    """Whether nothing in its place is the session's own."""
    own = spec.vault_ids or spec.resources or spec.workspace is not None
    return spec.trust_level == "sandboxed" and not own
