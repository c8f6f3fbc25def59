"""Why a run of a deployment has no session, in the API's words."""

from __future__ import annotations

from typing import Final

from roost.core.files.store import FileStore
from roost.core.sessions.specs import SpecRecords
from roost.domain.deployment import Body, Fault
from roost.errors import (
    EnvironmentArchived,
    EnvironmentNotFound,
    InvalidRequest,
    NotFound,
    RateLimited,
    RoostError,
    Unauthenticated,
)
from roost.ports.keys import Key

_TYPES: Final[tuple[tuple[type[RoostError], str], ...]] = (
    (RateLimited, "session_rate_limited_error"),
    (EnvironmentNotFound, "environment_not_found_error"),
    (EnvironmentArchived, "environment_archived_error"),
    (Unauthenticated, "unknown_error"),
)


def fault_of(error: RoostError) -> Fault:
    """What a run says that was refused a session with this error."""
    found = [name for kind, name in _TYPES if isinstance(error, kind)]
    return {"type": [*found, "session_creation_rejected_error"][0], "message": error.message}


class RunFaults:
    """Looks at what a deployment refers to: the error that refuses a session does not say which of it is gone."""

    def __init__(self, records: SpecRecords, files: FileStore) -> None:
        self._records = records
        self._files = files

    async def look(self, caller: Key, body: Body) -> Fault | None:
        """What is gone or archived; None: all of it can be used.

        :raises EnvironmentNotFound: :raises EnvironmentArchived:
        """
        return (
            await self._agent(caller.tenant, body)
            or await self._environment(caller.tenant, body)
            or await self._vaults(caller, body)
            or await self._missing_file(caller, body)
        )

    async def _agent(self, tenant: str, body: Body) -> Fault | None:
        given = body["agent"]
        record = await self._records.agents.get(tenant, given["id"], given["version"])
        if record.archived_at is not None:
            return {"type": "agent_archived_error", "message": f"agent {record.id} is archived"}
        try:
            await self._records.agents.pinned(tenant, record.body)
        except InvalidRequest as missing:
            return {"type": "skill_not_found_error", "message": missing.message}
        return None

    async def _environment(self, tenant: str, body: Body) -> Fault | None:
        record = await self._records.environments.get(tenant, body["environment_id"])
        if record.archived_at is not None:
            raise EnvironmentArchived(f"environment {record.id} is archived")
        if record.body["config"]["type"] != "self_hosted" or not body["resources"]:
            return None
        said = f"environment {record.id} is self-hosted and cannot mount resources"
        return {"type": "self_hosted_resources_unsupported_error", "message": said}

    async def _vaults(self, caller: Key, body: Body) -> Fault | None:
        for vault_id in body["vault_ids"]:
            try:
                vault = await self._records.vaults.seen(caller, vault_id)
            except NotFound as missing:
                return {"type": "vault_not_found_error", "message": missing.message}
            if vault.archived_at is not None:
                said = f"vault {vault_id} is archived"
                return {"type": "vault_archived_error", "message": said}
        return None

    async def _missing_file(self, caller: Key, body: Body) -> Fault | None:
        for each in body["resources"]:
            if each["type"] == "file":
                try:
                    await self._files.seen(caller, each["file_id"])
                except NotFound as missing:
                    return {"type": "file_not_found_error", "message": missing.message}
        return None
