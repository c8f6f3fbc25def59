"""What workers of self-hosted environments may do: known by the key of their environment, or by the token of one
work item, which is for one session alone.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio
import msgspec

from roost.api.access.tokens import WORK_PREFIX, WorkClaims, WorkTokens
from roost.core.access.environment_keys import PREFIX, EnvironmentKey, EnvironmentKeys
from roost.core.access.sessions import SessionAccess
from roost.core.work.work_items import WorkItems
from roost.domain.session import Session
from roost.domain.work_item import WorkItem
from roost.errors import Forbidden, NotFound, Unauthenticated
from roost.ports.keys import Key

_LONGEST: Final = 4096
_OF_ITEMS: Final = frozenset(
    {
        "environments.work.ack",
        "environments.work.heartbeat",
        "environments.work.retrieve",
        "environments.work.stop",
    }
)
_OF_SESSIONS: Final = frozenset(
    {
        "sessions.retrieve",
        "sessions.events.list",
        "sessions.events.send",
        "sessions.events.stream",
        "skills.versions.download",
        "skills.versions.retrieve",
    }
)
_OF_ENVIRONMENTS: Final = frozenset({"environments.work.poll", "environments.work.stats"})
_LATE: Final = _OF_ITEMS | {"sessions.events.send"}
_SENT: Final = frozenset({"user.tool_result", "user.custom_tool_result"})


class WorkerScope(msgspec.Struct, frozen=True):
    """A worker that calls: the key it was let in by, and the item that its token is for, if it has shown one. `late`:
    it had that item until lately.
    """

    key: EnvironmentKey
    claims: WorkClaims | None = None
    late: bool = False

    @property
    def caller(self) -> Key:
        """It as a key."""
        return self.key.caller()

    @property
    def claim(self) -> int | None:
        """Which claim of its item it holds."""
        return None if self.claims is None else self.claims.claim

    def check_sent(self, events: Sequence[Mapping[str, Any]]) -> None:
        """A worker brings results, and tells the session nothing else. :raises Forbidden:"""
        for i, event in enumerate(events):
            if event["type"] not in _SENT:
                raise Forbidden(f"events.{i}.type: a worker cannot send {event['type']}")


class WorkerAccess:
    """Recognises workers, and keeps them to what they may do."""

    def __init__(
        self, keys: EnvironmentKeys, tokens: WorkTokens, access: SessionAccess, items: WorkItems
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._access = access
        self._items = items

    async def recognise(self, headers: Mapping[str, str]) -> WorkerScope | None:
        """The worker that a request comes from; None: it is no worker's.

        :raises Unauthenticated: what it shows is not ours, or was revoked
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        secret = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not secret.startswith((PREFIX, WORK_PREFIX)):
            return None
        if len(secret) > _LONGEST:
            raise Unauthenticated()
        if secret.startswith(PREFIX):
            return WorkerScope(await self._keys.recognise(secret))
        claims = self._tokens.read(secret)
        key = await self._keys.named(claims.key_id)
        which = key.tenant, key.environment_id, claims.work_id, claims.claim
        standing = await self._items.standing(*which)
        if standing is None:
            raise Unauthenticated("The work item of this token is over.")
        return WorkerScope(key, claims, late=standing == "had")

    async def until_over(self, scope: WorkerScope) -> None:
        """Wait until a worker may follow its session no more; for ever, if it has not shown a token."""
        key, claims = scope.key, scope.claims
        if claims is None:
            await anyio.sleep_forever()
        else:
            which = key.tenant, key.environment_id, claims.work_id, claims.claim
            await self._items.until_over(*which)

    async def check(self, scope: WorkerScope, operation: str, params: Mapping[str, str]) -> None:
        """Whether a worker may do that.

        :raises Forbidden: workers may not, or not with this token
        :raises NotFound: it belongs to another environment, or to another session
        """
        claims = scope.claims
        own = _OF_ITEMS | _OF_SESSIONS | (frozenset() if claims else _OF_ENVIRONMENTS)
        if operation not in own:
            raise Forbidden(
                "A worker's credential may not do that.", hint="Use an API key of the server."
            )
        if scope.late and operation not in _LATE:
            raise Forbidden("The work item of this token is over: it can only bring results.")
        if params.get("environment_id", scope.key.environment_id) != scope.key.environment_id:
            raise Forbidden("This credential is another environment's.")
        if claims is not None and params.get("work_id", claims.work_id) != claims.work_id:
            raise Forbidden("This token is another work item's.")
        await self._check_reach(scope, params)

    async def _check_reach(self, scope: WorkerScope, params: Mapping[str, str]) -> None:
        """Sessions of its environment; with a token, one session, and the skills of that."""
        claims = scope.claims
        if (session_id := params.get("session_id")) is not None:
            session = await self._session(scope, session_id)
            is_own = claims is None or claims.session_id == session_id
            if session.spec.environment_id != scope.key.environment_id or not is_own:
                raise NotFound(f"session {session_id} was not found")
        if claims is not None and "skill_id" in params:
            await self._check_skill(scope, claims.session_id, params["skill_id"])

    async def _check_skill(self, scope: WorkerScope, session_id: str, skill_id: str) -> None:
        agent = (await self._session(scope, session_id)).spec.agent
        if all(skill["skill_id"] != skill_id for skill in agent["skills"]):
            raise NotFound(f"skill {skill_id} was not found")

    async def _session(self, scope: WorkerScope, session_id: str) -> Session:
        known = self._access.known_session(scope.caller, session_id, "see")
        return known or await self._access.session(scope.caller, session_id, "see")

    def secret(self, scope: WorkerScope, item: WorkItem) -> str:
        """What a worker is given with an item: a token for that item and its session."""
        claims = WorkClaims(
            key_id=scope.key.id, work_id=item.id, session_id=item.name, claim=item.claim
        )
        bundle = msgspec.json.encode({"sessions_token": self._tokens.sign(claims)})
        return base64.urlsafe_b64encode(bundle).rstrip(b"=").decode()
