"""Named workspaces: made, found, changed, shared and deleted, by those who may.

What one of them is set up as is a record of the catalog; its files are `core.workspaces.local`' business, under
the record's id. Whoever may not read a workspace is told that there is none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from roost.core.access.permissions import may_ask_for, may_use
from roost.domain import workspace
from roost.domain.session import Spec
from roost.domain.workspace import EVERYONE, PREFIX, Access
from roost.errors import Forbidden, InvalidRequest, NotFound, RoostError
from roost.ids import mint
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.drafts import trouble
from roost.ports.keys import Key, Keys
from roost.ports.notifier import Notifier
from roost.ports.sessions import Revised, SessionQuery, Sessions

_AT_ONCE: Final = 100
_log = logging.getLogger(__name__)


class NamedWorkspaces:
    """The workspaces of all tenants; every call names who makes it."""

    def __init__(
        self, catalog: Catalog, sessions: Sessions, keys: Keys, notifier: Notifier
    ) -> None:
        self._catalog = catalog
        self._sessions = sessions
        self._keys = keys
        self._notifier = notifier

    async def create(self, caller: Key, params: Mapping[str, Any]) -> Record:
        """A new workspace, the caller's. :raises InvalidRequest: :raises Conflict: its name"""
        _check_levels(caller, params)
        body = workspace.created(params, caller.principal)
        made = mint(PREFIX)
        return await self._catalog.add(
            "workspace", caller.tenant, made, body, unique_name=True, created_by=caller.principal
        )

    async def get(self, caller: Key, name_or_id: str, access: Access = "read") -> Record:
        """A workspace that the caller may use like that, by its id or by its name.

        :raises NotFound: absent, another tenant's, or not the caller's to see
        :raises Forbidden: it may be seen, and no more
        """
        found = await self.find(caller.tenant, name_or_id)
        if found is None or not may_use(caller, found, "read"):
            raise NotFound(f"workspace {name_or_id!r} was not found")
        if not may_use(caller, found, access):
            raise Forbidden(
                f"this key may not do that with the workspace: it takes {access!r}",
                hint="Whoever administers the workspace can share it with this key.",
            )
        return found

    async def page(self, caller: Key, query: RecordQuery) -> list[Record]:
        """A page of those that the caller may read, newest first."""
        found: list[Record] = []
        after, left = query.after, True
        while left and len(found) < query.limit:
            records = await self._catalog.page(replace(query, after=after, limit=_AT_ONCE))
            left = len(records) == _AT_ONCE
            after = records[-1].id if records else after
            found += [record for record in records if may_use(caller, record, "read")]
        return found[: query.limit]

    async def update(self, caller: Key, workspace_id: str, params: Mapping[str, Any]) -> Record:
        """Rename it, describe it, set it up otherwise. :raises NotFound: :raises Forbidden:"""
        _check_levels(caller, params)
        record = await self.get(caller, workspace_id, "admin")
        after = await self._catalog.change(
            "workspace",
            caller.tenant,
            record.id,
            lambda now: workspace.updated(now.body, params),
            unique_name=True,
        )
        self._notifier.notify(after.id)  # sessions may wait for what was changed
        return after

    async def share(
        self, caller: Key, workspace_id: str, key_id: str, access: Access | None
    ) -> Record:
        """Let a key of the tenant, or everyone's, do something with it; None: nothing any more.

        :raises InvalidRequest: no such key
        """
        record = await self.get(caller, workspace_id, "admin")
        keys = {key.id: key for key in await self._keys.all(caller.tenant)}
        known = {key.id for key in keys.values() if key.revoked_at is None}
        if access is not None and key_id not in {*known, EVERYONE}:
            raise InvalidRequest(f"key_id: there is no key {key_id!r} here")
        # Whom the key acts for: a key that replaces this one may do the same.
        whom = keys[key_id].principal if key_id in keys else key_id
        return await self._catalog.change(
            "workspace",
            caller.tenant,
            record.id,
            lambda now: workspace.shared(now.body, whom, access),
        )

    async def delete(self, caller: Key, workspace_id: str, *, force: bool) -> Record:
        """Remove it; its files and snapshots follow. With `force`, also from under its sessions.

        The record goes first. Sessions that use it say so in their logs, and those that were not
        told, because the server died in between, say it when they are next told something.

        :raises NotFound: :raises Forbidden: :raises Conflict: sessions use it
        """
        record = await self.get(caller, workspace_id, "admin")
        await self._catalog.delete("workspace", caller.tenant, record.id, force=force)
        self._notifier.notify(record.id)
        if force:
            await self._tell(record)
        return record

    async def joined(self, caller: Key, asked: dict[str, Any]) -> dict[str, Any]:
        """What a session asks for, with its workspace by id, and what that gives to sessions.

        :raises InvalidRequest: there is no such workspace :raises Forbidden: not to be written to
        """
        name = asked.get("workspace")
        if name is None:
            return asked
        try:
            record = await self.get(caller, name, "write")
        except NotFound as missing:
            raise InvalidRequest(
                f"workspace: {missing.message}",
                hint="`roost workspaces ls` lists those you may use; omit it for one of its own.",
            ) from None
        scope = workspace.settings_of(record.body).mount_scope
        given = {} if scope is None else {"mount_scope": scope}
        return {**given, **asked, "workspace": record.id}

    async def check_trust(self, tenant: str, spec: Spec) -> None:
        """Refuse a session that is trusted with more than its workspace allows.

        :raises InvalidRequest: the session's workspace does not let its trust level in
        """
        if spec.workspace is None:
            return
        record = await self._catalog.get("workspace", tenant, spec.workspace)
        levels = workspace.settings_of(record.body).trust_levels
        if spec.trust_level not in levels:
            raise InvalidRequest(
                f"trust_level: the workspace {record.body['name']!r} does not let "
                f"{spec.trust_level!r} sessions in",
                hint=f"It lets in: {', '.join(levels)}. Its setting is `trust_levels`.",
            )

    async def readable(self, caller: Key) -> list[str]:
        """The ids of those that the caller may read."""
        query = RecordQuery(kind="workspace", tenant=caller.tenant, limit=_AT_ONCE)
        found: list[str] = []
        while records := await self._catalog.page(query):
            found += [record.id for record in records if may_use(caller, record, "read")]
            query = replace(query, after=records[-1].id)
        return found

    async def find(self, tenant: str, name_or_id: str) -> Record | None:
        """A workspace of the tenant, whoever may use it; None if there is none."""
        if not name_or_id.startswith(f"{PREFIX}_"):
            return await self._catalog.named("workspace", tenant, name_or_id)
        try:
            return await self._catalog.get("workspace", tenant, name_or_id)
        except NotFound:
            return None

    async def _tell(self, record: Record) -> None:
        """Say in each session's log that its workspace is gone."""
        text = (
            f"The workspace {record.body['name']!r} was deleted, and this session's files with it."
        )
        said = trouble("workspace_deleted", text, "exhausted")
        query = SessionQuery(tenant=record.tenant, workspace=record.id, limit=_AT_ONCE)
        while sessions := await self._sessions.page(query):
            for session in sessions:
                try:
                    await self._sessions.revise(
                        record.tenant, session.id, lambda now: Revised(now.spec, [said])
                    )
                except RoostError as error:
                    about = {"action": "tell", "session": session.id}
                    _log.warning("not told: %s", error.message, extra=about)
                self._notifier.notify(session.id)
            query = replace(query, after=sessions[-1].id)


def _check_levels(caller: Key, params: Mapping[str, Any]) -> None:
    """Nobody lets more trust in than they may ask for themselves."""
    for level in (params.get("settings") or {}).get("trust_levels") or ():
        if not may_ask_for(caller, level):
            raise Forbidden(
                f"settings.trust_levels: this key may ask for {caller.trust_ceiling!r} at most"
            )
