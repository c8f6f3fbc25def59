"""The resource `/v1/skills`: skills and their versions, uploaded as files."""

from __future__ import annotations

from typing import Any, Final

from anyio import to_thread
from starlette.responses import Response
from starlette.types import ASGIApp

from roost.api.access.auth import OLD_SKILLS
from roost.api.framework.call import ApiCall
from roost.api.framework.paging import (
    DEFAULT_PAGE,
    Cursor,
    cursor_in,
    page,
    record_page,
    record_query,
)
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.api.framework.uploads import form_of
from roost.core.records.skills import Skills
from roost.domain.events import iso
from roost.domain.skill import bundled
from roost.errors import InvalidRequest
from roost.ports.catalog import Record

_SKILL = "beta.BetaSkill"
_SKILL_VERSION = "beta.skills.BetaSkillVersion"
_LONGEST_NAME = 255

RESOURCE: Final = Resource(
    beta=False,
    refuses=OLD_SKILLS,
)


@RESOURCE.upload("skills.create", "/v1/skills", "files[]", fields=["display_name"], reply=_SKILL)
async def create(call: ApiCall, skills: Skills) -> ASGIApp:
    """A new skill, with its first version."""
    form = await form_of(call, "display_name")
    name = form.fields.get("display_name", "").strip()
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidRequest(f"display_name: one line of at most {_LONGEST_NAME} characters")
    bundle = await to_thread.run_sync(bundled, form.files)
    made = await skills.create(call.key, bundle, name or None)
    return reply(_view(made))


@RESOURCE.get("skills.list", "/v1/skills", "beta.SkillListParams", reply=_SKILL, form="page")
async def list_(call: ApiCall, skills: Skills) -> ASGIApp:
    """Skills, newest first. There are none but those that clients have made."""
    query = record_query(call.query, "skill", call.tenant)
    ours = call.query.get("source", "custom") == "custom"
    if not ours:
        return reply({"data": [], "next_page": None})
    return reply(await record_page(skills.page, query, _view))


@RESOURCE.get("skills.retrieve", "/v1/skills/{skill_id}", reply=_SKILL)
async def retrieve(call: ApiCall, skills: Skills) -> ASGIApp:
    """A skill."""
    return reply(_view(await skills.get(call.tenant, call.params["skill_id"])))


@RESOURCE.delete("skills.delete", "/v1/skills/{skill_id}", reply="beta.BetaDeletedSkill")
async def delete(call: ApiCall, skills: Skills) -> ASGIApp:
    """A skill, gone with its versions."""
    skill_id = call.params["skill_id"]
    await skills.delete(call.key, skill_id)
    return reply({"id": skill_id, "type": "skill_deleted"})


@RESOURCE.upload(
    "skills.versions.create", "/v1/skills/{skill_id}/versions", "files[]", reply=_SKILL_VERSION
)
async def create_version(call: ApiCall, skills: Skills) -> ASGIApp:
    """A newer version of a skill."""
    bundle = await to_thread.run_sync(bundled, (await form_of(call)).files)
    made = await skills.add_version(call.key, call.params["skill_id"], bundle)
    return reply(_version_view(*made))


@RESOURCE.get(
    "skills.versions.list",
    "/v1/skills/{skill_id}/versions",
    "beta.skills.VersionListParams",
    reply=_SKILL_VERSION,
    form="page",
)
async def list_versions(call: ApiCall, skills: Skills) -> ASGIApp:
    """A skill's versions, newest first."""
    skill_id, limit = call.params["skill_id"], call.query.get("limit", DEFAULT_PAGE)
    cursor = cursor_in(call.query, skill_id, "desc")
    record = await skills.get(call.tenant, skill_id)
    left = [
        version
        for version in reversed(record.body["versions"])
        if cursor is None or version["id"] < str(cursor.after)
    ]
    shown = left[:limit]
    more = len(left) > limit
    last = Cursor(of=skill_id, order="desc", after=shown[-1]["id"]) if more else None
    return reply(page([_version_view(record, version) for version in shown], last))


@RESOURCE.get(
    "skills.versions.retrieve", "/v1/skills/{skill_id}/versions/{version}", reply=_SKILL_VERSION
)
async def retrieve_version(call: ApiCall, skills: Skills) -> ASGIApp:
    """One version, or the `latest`."""
    which = call.params["skill_id"], call.params["version"]
    return reply(_version_view(*await skills.version(call.tenant, *which)))


@RESOURCE.delete(
    "skills.versions.delete",
    "/v1/skills/{skill_id}/versions/{version}",
    reply="beta.skills.BetaDeletedSkillVersion",
)
async def delete_version(call: ApiCall, skills: Skills) -> ASGIApp:
    """One version, gone."""
    which = call.params["skill_id"], call.params["version"]
    gone = await skills.delete_version(call.key, *which)
    return reply({"id": gone, "type": "skill_version_deleted"})


@RESOURCE.get(
    "skills.versions.download",
    "/v1/skills/{skill_id}/versions/{version}/content",
    form="other",
    media="application/zip",
)
async def download(call: ApiCall, skills: Skills) -> ASGIApp:
    """A version's files, as a zip archive."""
    which = call.params["skill_id"], call.params["version"]
    content = await skills.content(call.tenant, *which)
    return Response(content, media_type="application/zip")


def _view(record: Record) -> dict[str, Any]:
    """The `skill` object, as clients see it."""
    versions = record.body["versions"]
    return {
        "type": "skill",
        "id": record.id,
        "display_name": record.body["display_name"],
        "latest_version_id": versions[-1]["id"] if versions else "",  # the type has no null
        "source": {"type": "custom"},
        "created_at": iso(record.created_at),
        "updated_at": iso(record.updated_at),
    }


def _version_view(record: Record, version: dict[str, Any]) -> dict[str, Any]:
    """The `skill_version` object, as clients see it."""
    return {
        "type": "skill_version",
        "id": version["id"],
        "skill_id": record.id,
        "name": record.body["name"],
        "description": version["description"],
        "created_at": iso(version["created_at"]),
    }
