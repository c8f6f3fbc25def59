"""Skills: uploaded, versioned, pinned by agents, shown in sandboxes.

A skill is one record with all its versions in it; a version's files are kept under its id before the
record names them, and dropped after it no longer does. A crash between leaves files that nobody
knows, and never a version without its files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from anyio import to_thread

from roost.domain.ids import mint
from roost.domain.session import Session
from roost.domain.skill import MOST_VERSIONS, Bundle, zipped
from roost.errors import InvalidRequest, NotFound
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.harness import SKILLS
from roost.ports.sandbox import Mount
from roost.ports.skills import SkillFiles

Version = dict[str, Any]
LATEST = "latest"


class Skills:
    """The skills of all tenants."""

    def __init__(self, catalog: Catalog, files: SkillFiles) -> None:
        self._catalog = catalog
        self._files = files

    async def create(self, tenant: str, bundle: Bundle, display_name: str | None) -> Record:
        """A new skill with its first version. :raises Unavailable: the disk refused"""
        version = await self._kept(bundle)
        body = {
            "name": bundle.name,
            "display_name": display_name or bundle.name,
            "versions": [version],
        }
        try:
            return await self._catalog.add("skill", tenant, mint("skill"), body, unique_name=False)
        except BaseException:
            await self._files.drop(version["id"])
            raise

    async def get(self, tenant: str, skill_id: str) -> Record:
        """:raises NotFound: absent, or another tenant's"""
        try:
            return await self._catalog.get("skill", tenant, skill_id)
        except NotFound:
            raise NotFound(f"skill {skill_id} was not found") from None

    async def page(self, query: RecordQuery) -> list[Record]:
        """A page of skills, newest first."""
        return await self._catalog.page(query)

    async def delete(self, tenant: str, skill_id: str) -> None:
        """Remove it with all versions. Agents that name it go on without. :raises NotFound:"""
        record = await self.get(tenant, skill_id)
        await self._catalog.delete("skill", tenant, skill_id)
        for version in record.body["versions"]:
            await self._files.drop(version["id"])

    async def add_version(
        self, tenant: str, skill_id: str, bundle: Bundle
    ) -> tuple[Record, Version]:
        """A newer version. :raises NotFound: :raises InvalidRequest: it has another name"""
        _check_same(await self.get(tenant, skill_id), bundle)
        version = await self._kept(bundle)
        change = partial(_added, version)
        try:
            return await self._catalog.change("skill", tenant, skill_id, change), version
        except BaseException:
            await self._files.drop(version["id"])
            raise

    async def version(self, tenant: str, skill_id: str, which: str) -> tuple[Record, Version]:
        """One version by its id, or the `latest`. :raises NotFound:"""
        record = await self.get(tenant, skill_id)
        return record, _version(record, which)

    async def delete_version(self, tenant: str, skill_id: str, which: str) -> str:
        """Remove one version; gives its id. :raises NotFound: :raises InvalidRequest: the only one"""
        _, version = await self.version(tenant, skill_id, which)
        change = partial(_removed, version["id"])
        await self._catalog.change("skill", tenant, skill_id, change)
        await self._files.drop(version["id"])
        return str(version["id"])

    async def content(self, tenant: str, skill_id: str, which: str) -> bytes:
        """A version's files as a zip archive. :raises NotFound:"""
        record, version = await self.version(tenant, skill_id, which)
        files = await self._files.read(version["id"])
        return await to_thread.run_sync(zipped, record.body["name"], files)

    async def pinned(
        self, tenant: str, skills: Sequence[Mapping[str, Any]] | None, at: str = "skills"
    ) -> list[dict[str, Any]]:
        """An agent's skills with the versions they now stand for.

        :raises InvalidRequest: one does not exist, or two have one name
        """
        found: list[dict[str, Any]] = []
        names: set[str] = set()
        for i, skill in enumerate(skills or ()):
            if skill["type"] != "custom":
                found.append(dict(skill))
                continue
            try:
                which = skill.get("version") or LATEST
                record, version = await self.version(tenant, skill["skill_id"], which)
            except NotFound as missing:
                raise InvalidRequest(f"{at}.{i}.skill_id: {missing.message}") from None
            if record.body["name"] in names:
                raise InvalidRequest(f"{at}.{i}: two skills are named {record.body['name']!r}")
            names.add(record.body["name"])
            found.append({**skill, "version": version["id"]})
        return found

    async def mounts(self, session: Session) -> tuple[list[Mount], list[str]]:
        """What a sandbox must show of a session's skills, and what of them is gone, in words."""
        mounts, gone = [], []
        skills = session.spec.agent.get("skills") or ()
        if skills and session.spec.trust_level != "sandboxed":
            return [], ["skills are shown in sandboxes only"]
        for skill in skills:
            mount = await self._mount(session.tenant, skill["skill_id"], skill["version"])
            if mount is None:
                gone.append(f"skill {skill['skill_id']} ({skill['version']}) no longer exists")
            else:
                mounts.append(mount)
        return mounts, gone

    async def _mount(self, tenant: str, skill_id: str, which: str) -> Mount | None:
        try:
            record, version = await self.version(tenant, skill_id, which)
        except NotFound:
            return None
        place = await self._files.where(version["id"])
        return None if place is None else Mount(place, f"{SKILLS}/{record.body['name']}")

    async def _kept(self, bundle: Bundle) -> Version:
        version_id = mint("skillver")
        await self._files.keep(version_id, bundle.files)
        return {
            "id": version_id,
            "description": bundle.description,
            "created_at": time.time_ns() // 1000,
        }


def _version(record: Record, which: str) -> Version:
    versions: list[Version] = record.body["versions"]
    if which == LATEST:
        return versions[-1]
    for version in versions:
        if version["id"] == which:
            return version
    raise NotFound(f"skill {record.id} has no version {which}")


def _check_same(record: Record, bundle: Bundle) -> None:
    name = record.body["name"]
    if bundle.name != name:
        raise InvalidRequest(
            f"files: this is a version of {bundle.name!r}, and the skill is {name!r}",
            hint="A skill keeps its name; create another one.",
        )


def _added(version: Version, record: Record) -> dict[str, Any]:
    versions = record.body["versions"]
    if len(versions) >= MOST_VERSIONS:
        raise InvalidRequest(
            f"files: a skill has at most {MOST_VERSIONS} versions", hint="Delete an old one."
        )
    return {**record.body, "versions": [*versions, version]}


def _removed(version_id: str, record: Record) -> dict[str, Any]:
    left = [version for version in record.body["versions"] if version["id"] != version_id]
    if not left:
        raise InvalidRequest(
            "version: a skill has at least one version", hint="Delete the skill as a whole."
        )
    return {**record.body, "versions": left}
