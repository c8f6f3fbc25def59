"""`/v1/skills`."""

from __future__ import annotations

from anyio import to_thread
from starlette.responses import Response
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall, reply
from roost.api.framework.paging import (
    DEFAULT_PAGE,
    Cursor,
    cursor_in,
    page,
    record_page,
    record_query,
)
from roost.api.framework.uploads import form_of
from roost.api.resources import views
from roost.domain.skill import bundled
from roost.errors import InvalidRequest

_LONGEST_NAME = 255


async def create(call: ApiCall) -> ASGIApp:
    """A new skill, with its first version."""
    form = await form_of(call, "display_name")
    name = form.fields.get("display_name", "").strip()
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidRequest(f"display_name: one line of at most {_LONGEST_NAME} characters")
    bundle = await to_thread.run_sync(bundled, form.files)
    made = await call.deps.skills.create(call.key, bundle, name or None)
    return reply(views.skill(made))


async def retrieve(call: ApiCall) -> ASGIApp:
    """A skill."""
    return reply(views.skill(await call.deps.skills.get(call.tenant, call.params["skill_id"])))


async def list_(call: ApiCall) -> ASGIApp:
    """Skills, newest first. There are none but those that clients have made."""
    query = record_query(call.query, "skill", call.tenant)
    ours = call.query.get("source", "custom") == "custom"
    if not ours:
        return reply({"data": [], "next_page": None})
    return reply(await record_page(call.deps.skills.page, query, views.skill))


async def delete(call: ApiCall) -> ASGIApp:
    """A skill, gone with its versions."""
    skill_id = call.params["skill_id"]
    await call.deps.skills.delete(call.key, skill_id)
    return reply({"id": skill_id, "type": "skill_deleted"})


async def create_version(call: ApiCall) -> ASGIApp:
    """A newer version of a skill."""
    bundle = await to_thread.run_sync(bundled, (await form_of(call)).files)
    made = await call.deps.skills.add_version(call.key, call.params["skill_id"], bundle)
    return reply(views.skill_version(*made))


async def retrieve_version(call: ApiCall) -> ASGIApp:
    """One version, or the `latest`."""
    which = call.params["skill_id"], call.params["version"]
    return reply(views.skill_version(*await call.deps.skills.version(call.tenant, *which)))


async def list_versions(call: ApiCall) -> ASGIApp:
    """A skill's versions, newest first."""
    skill_id, limit = call.params["skill_id"], call.query.get("limit", DEFAULT_PAGE)
    cursor = cursor_in(call.query, skill_id, "desc")
    record = await call.deps.skills.get(call.tenant, skill_id)
    left = [
        version
        for version in reversed(record.body["versions"])
        if cursor is None or version["id"] < str(cursor.after)
    ]
    shown = left[:limit]
    more = len(left) > limit
    last = Cursor(of=skill_id, order="desc", after=shown[-1]["id"]) if more else None
    return reply(page([views.skill_version(record, version) for version in shown], last))


async def delete_version(call: ApiCall) -> ASGIApp:
    """One version, gone."""
    which = call.params["skill_id"], call.params["version"]
    gone = await call.deps.skills.delete_version(call.key, *which)
    return reply({"id": gone, "type": "skill_version_deleted"})


async def download(call: ApiCall) -> ASGIApp:
    """A version's files, as a zip archive."""
    which = call.params["skill_id"], call.params["version"]
    content = await call.deps.skills.content(call.tenant, *which)
    return Response(content, media_type="application/zip")
