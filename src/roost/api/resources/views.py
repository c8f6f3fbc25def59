"""What clients see of a record or a session."""

from __future__ import annotations

from typing import Any

from roost.domain.events import Micros, iso
from roost.domain.file import file_of
from roost.domain.session import Session, Status
from roost.ports.catalog import Record


def agent(record: Record) -> dict[str, Any]:
    """The `agent` object."""
    return {
        "type": "agent",
        "id": record.id,
        "version": record.version,
        **record.body,
        **_times(record.created_at, record.updated_at, record.archived_at),
    }


def environment(record: Record) -> dict[str, Any]:
    """The `environment` object."""
    return {
        "type": "environment",
        "id": record.id,
        **record.body,
        "description": record.body["description"] or "",  # older SDKs have no null for it
        **_times(record.created_at, record.updated_at, record.archived_at),
    }


def skill(record: Record) -> dict[str, Any]:
    """The `skill` object."""
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


def skill_version(record: Record, version: dict[str, Any]) -> dict[str, Any]:
    """The `skill_version` object."""
    return {
        "type": "skill_version",
        "id": version["id"],
        "skill_id": record.id,
        "name": record.body["name"],
        "description": version["description"],
        "created_at": iso(version["created_at"]),
    }


def file(record: Record) -> dict[str, Any]:
    """The `file` object."""
    found = file_of(record.body)
    return {
        "type": "file",
        "id": record.id,
        "filename": found.filename,
        "mime_type": found.mime_type,
        "size_bytes": found.size,
        "created_at": iso(record.created_at),
        "downloadable": found.origin is not None,  # what an agent made, not what a client sent
        "expires_at": None if found.expires_at is None else iso(found.expires_at),
        "scope": None if found.name is None else {"type": "session", "id": found.name},
    }


def session(session: Session) -> dict[str, Any]:
    """The `session` object, with what Roost adds to it at the end."""
    spec, state = session.spec, session.state
    stats = _stats(session)
    return {
        "type": "session",
        "id": session.id,
        "status": state.status,
        "title": spec.title,
        "agent": spec.agent,
        "environment_id": spec.environment_id,
        "deployment_id": None,
        "vault_ids": spec.vault_ids,
        "resources": spec.resources,
        "metadata": spec.metadata,
        "outcome_evaluations": [],
        "usage": state.shown_usage(stats["active_seconds"]),
        "stats": stats,
        "budget": spec.budget,
        **_times(session.created_at, session.updated_at, state.archived_at),
        "trust_level": spec.trust_level,
        "workspace": spec.workspace,
        "mount_scope": spec.mount_scope,
        "harness": spec.harness,
        "sandbox": spec.sandbox,
        "sandbox_fallback": spec.sandbox_fallback,
        "sdk_session_id": spec.sdk_session_id,
        "task_id": spec.task_id,
        "forked_from": spec.forked_from,
        "created_by": spec.created_by or None,
        "waiting_for": [pending.event_id for pending in state.pending],
    }


def thread(session: Session) -> dict[str, Any]:
    """The session's primary thread, the only one it has."""
    state = session.state
    agent = {field: value for field, value in session.spec.agent.items() if field != "multiagent"}
    stats = _stats(session)
    return {
        "type": "session_thread",
        "id": state.thread_id,
        "session_id": session.id,
        "parent_thread_id": None,
        "agent": agent,
        "status": state.status,
        "stats": stats,
        "usage": state.shown_usage(stats["active_seconds"]),
        "workflow_run_id": None,
        **_times(session.created_at, session.updated_at, state.archived_at),
    }


def _stats(session: Session) -> dict[str, float]:
    ended = session.state.status is Status.TERMINATED
    until = session.updated_at if ended else max(session.read_at, session.updated_at)
    return {
        "active_seconds": session.state.active_seconds(until),
        "duration_seconds": (until - session.created_at) / 1_000_000,
    }


def _times(created: Micros, updated: Micros, archived: Micros | None) -> dict[str, Any]:
    return {
        "created_at": iso(created),
        "updated_at": iso(updated),
        "archived_at": None if archived is None else iso(archived),
    }
