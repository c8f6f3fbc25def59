"""The operations on skills, for the table in `api/operations.py`."""

from __future__ import annotations

from typing import Final

from roost.api.framework.routes import delete, get, upload
from roost.api.resources import skills

_SKILL = "beta.BetaSkill"
_SKILL_VERSION = "beta.skills.BetaSkillVersion"

SKILLS: Final = (
    upload(
        "skills.create",
        "/v1/skills",
        skills.create,
        "files[]",
        fields=["display_name"],
        reply=_SKILL,
    ),
    get(
        "skills.list", "/v1/skills", skills.list_, "beta.SkillListParams", reply=_SKILL, form="page"
    ),
    get("skills.retrieve", "/v1/skills/{skill_id}", skills.retrieve, reply=_SKILL),
    delete("skills.delete", "/v1/skills/{skill_id}", skills.delete, reply="beta.BetaDeletedSkill"),
    upload(
        "skills.versions.create",
        "/v1/skills/{skill_id}/versions",
        skills.create_version,
        "files[]",
        reply=_SKILL_VERSION,
    ),
    get(
        "skills.versions.list",
        "/v1/skills/{skill_id}/versions",
        skills.list_versions,
        "beta.skills.VersionListParams",
        reply=_SKILL_VERSION,
        form="page",
    ),
    get(
        "skills.versions.retrieve",
        "/v1/skills/{skill_id}/versions/{version}",
        skills.retrieve_version,
        reply=_SKILL_VERSION,
    ),
    delete(
        "skills.versions.delete",
        "/v1/skills/{skill_id}/versions/{version}",
        skills.delete_version,
        reply="beta.skills.BetaDeletedSkillVersion",
    ),
    get(
        "skills.versions.download",
        "/v1/skills/{skill_id}/versions/{version}/content",
        skills.download,
        form="other",
        media="application/zip",
    ),
)
