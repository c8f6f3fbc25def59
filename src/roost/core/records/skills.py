"""Skills: uploaded, versioned, pinned by agents, shown in sandboxes.

A skill is one record with all its versions in it; a version's files are kept under its id before the
record names them, and dropped after it no longer does. A note on the shelf leads to what a crash between
leaves behind: there is never a version without its files, and files without a version do not stay.

    upload:          note → files → record with the version → note finished → no note
    delete version:  note → record without it → no files → no note
    delete skill:    note → record archived, which nobody is shown → no files → no record → no note

Without a crash it is done in the same request; else by whoever looks at the shelf next (`heed`), and, if
it looks like an upload that is still going on, an hour later.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from anyio import to_thread

from roost.core.access.permissions import check_owner
from roost.core.files.intents import Intents
from roost.domain.session import Session
from roost.domain.skill import MOST_VERSIONS, Bundle, zipped
from roost.errors import InvalidRequest, NotFound, RoostError
from roost.ids import mint
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.harness import SkillNote
from roost.ports.harness_profile import SKILLS
from roost.ports.keys import Key
from roost.ports.sandbox_provider import Mount
from roost.ports.skills import SkillFiles

Version = dict[str, Any]
LATEST = "latest"


class Skills:
    """The skills of all tenants."""

    def __init__(self, catalog: Catalog, files: SkillFiles) -> None:
        self._catalog = catalog
        self._files = files
        self._shelf = Intents(catalog)

    async def create(self, caller: Key, bundle: Bundle, display_name: str | None) -> Record:
        """A new skill with its first version, the caller's. :raises BlobsFailed: nothing is kept"""
        skill_id, version = mint("skill"), _new(bundle)
        body = {
            "name": bundle.name,
            "display_name": display_name or bundle.name,
            "versions": [version],
        }
        async with self._keeping(caller.tenant, skill_id, version["id"], bundle, is_new=True):
            return await self._catalog.add(
                "skill",
                caller.tenant,
                skill_id,
                body,
                unique_name=False,
                created_by=caller.principal,
            )

    async def get(self, tenant: str, skill_id: str) -> Record:
        """The skill of that id, if it is the tenant's. :raises NotFound: absent, or another tenant's"""
        with suppress(NotFound):
            record = await self._catalog.get("skill", tenant, skill_id)
            if record.archived_at is None:
                return record
        raise NotFound(f"skill {skill_id} was not found")

    async def page(self, query: RecordQuery) -> list[Record]:
        """A page of skills, newest first."""
        return await self._catalog.page(query)

    async def delete(self, caller: Key, skill_id: str) -> None:
        """Remove it with all versions. Agents that name it go on without.

        :raises NotFound: :raises NotTheOwner: :raises BlobsFailed: nothing is removed
        """
        check_owner(caller, await self.get(caller.tenant, skill_id))
        await self._files.check()
        tenant = caller.tenant
        note = await self._shelf.note(tenant, skill=skill_id)
        await self._catalog.archive("skill", tenant, skill_id)
        await self._remove(tenant, skill_id)
        await self._shelf.settle(note)

    async def add_version(
        self, caller: Key, skill_id: str, bundle: Bundle
    ) -> tuple[Record, Version]:
        """Add a newer version of a skill.

        :raises NotFound:
        :raises NotTheOwner:
        :raises InvalidRequest: another name
        """
        tenant, record = caller.tenant, await self.get(caller.tenant, skill_id)
        check_owner(caller, record)
        _check_same(record, bundle)
        version = _new(bundle)
        change = partial(_added, version)
        async with self._keeping(tenant, skill_id, version["id"], bundle):
            return await self._catalog.change("skill", tenant, skill_id, change), version

    async def version(self, tenant: str, skill_id: str, which: str) -> tuple[Record, Version]:
        """One version by its id, or the `latest`. :raises NotFound:"""
        record = await self.get(tenant, skill_id)
        return record, _version(record, which)

    async def delete_version(self, caller: Key, skill_id: str, which: str) -> str:
        """Remove one version; gives its id.

        :raises NotFound: :raises NotTheOwner: :raises BlobsFailed: nothing is removed
        """
        tenant = caller.tenant
        record, version = await self.version(tenant, skill_id, which)
        check_owner(caller, record)
        await self._files.check()
        note = await self._shelf.note(tenant, skill=skill_id, version=version["id"], deleted=True)
        change = partial(_removed, version["id"])
        try:
            await self._catalog.change("skill", tenant, skill_id, change)
        except NotFound:
            await self._shelf.settle(note)
            raise
        await self._files.drop(version["id"])
        await self._shelf.settle(note)
        return str(version["id"])

    async def content(self, tenant: str, skill_id: str, which: str) -> bytes:
        """A version's files as a zip archive. :raises NotFound: :raises BlobsFailed:"""
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

    async def notes(self, session: Session) -> list[SkillNote]:
        """What a model is told of a session's skills; nothing of those that are gone."""
        found = []
        if session.spec.trust_level == "sandboxed":
            for skill in session.spec.agent.get("skills") or ():
                with suppress(NotFound):
                    record, version = await self.version(
                        session.tenant, skill["skill_id"], skill["version"]
                    )
                    found.append(SkillNote(record.body["name"], version["description"]))
        return found

    async def _mount(self, tenant: str, skill_id: str, which: str) -> Mount | None:
        try:
            record, version = await self.version(tenant, skill_id, which)
        except NotFound:
            return None
        place = await self._files.where(version["id"])
        return None if place is None else Mount(place, f"{SKILLS}/{record.body['name']}")

    async def heed(self, note: Record, is_old: bool) -> None:
        """Finish what a note on the shelf is about, unless somebody may still be at it."""
        tenant, skill_id = note.body["tenant"], note.body["skill"]
        version_id, deleted = note.body.get("version"), note.body.get("deleted")
        try:
            record = await self._catalog.get("skill", tenant, skill_id)
        except NotFound:
            known: list[str] = []
        else:
            known = [version["id"] for version in record.body["versions"]]
            if record.archived_at is not None:
                await self._remove(tenant, skill_id)
                known = []
        if version_id is None or version_id in known:
            if is_old or not known:
                await self._shelf.settle(note.id)
        elif is_old or deleted:
            if not deleted and not note.body.get("finished"):
                await self._shelf.condemn(note)
            await self._files.drop(version_id)
            await self._shelf.settle(note.id)

    @asynccontextmanager
    async def _keeping(
        self,
        tenant: str,
        skill_id: str,
        version_id: str,
        bundle: Bundle,
        *,
        is_new: bool = False,
    ) -> AsyncGenerator[None, None]:
        """The files of a version, which the body gives a record; they go if it does not."""
        note = await self._shelf.note(tenant, skill=skill_id, version=version_id)
        try:
            await self._files.keep(version_id, bundle.files)
            yield
            await self._shelf.finish(note)
        except RoostError:
            with suppress(RoostError):  # then the note stays, and leads to it
                await self._take_back(tenant, skill_id, version_id, note, is_new=is_new)
            raise
        await self._shelf.settle(note)

    async def _take_back(
        self, tenant: str, skill_id: str, version_id: str, note: str, *, is_new: bool
    ) -> None:
        """Remove a version that was not to be from the record, if it is there, then its files; with `is_new`,
        the skill was not to be either.
        """
        with suppress(NotFound):
            if is_new:
                await self._catalog.delete("skill", tenant, skill_id)
            else:
                change = partial(_removed, version_id)
                await self._catalog.change("skill", tenant, skill_id, change)
        await self._files.drop(version_id)
        await self._shelf.settle(note)

    async def _remove(self, tenant: str, skill_id: str) -> None:
        """The files of an archived skill, which gets no more of them, then the record."""
        with suppress(NotFound):
            record = await self._catalog.get("skill", tenant, skill_id)
            for version in record.body["versions"]:
                await self._files.drop(version["id"])
            await self._catalog.delete("skill", tenant, skill_id)


def _new(bundle: Bundle) -> Version:
    return {
        "id": mint("skillver"),
        "description": bundle.description,
        "created_at": time.time_ns() // 1000,
    }


def _version(record: Record, which: str) -> Version:
    versions: list[Version] = record.body["versions"]
    if which == LATEST and versions:
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
    if record.archived_at is not None:  # it is being deleted
        raise NotFound(f"skill {record.id} was not found")
    if len(versions) >= MOST_VERSIONS:
        raise InvalidRequest(
            f"files: a skill has at most {MOST_VERSIONS} versions", hint="Delete an old one."
        )
    return {**record.body, "versions": [*versions, version]}


def _removed(version_id: str, record: Record) -> dict[str, Any]:
    left = [version for version in record.body["versions"] if version["id"] != version_id]
    return {**record.body, "versions": left}
