"""What the commands of `roost deployment` do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from roost.cli.client import ApiClient, Json, at
from roost.cli.names import AGENTS, DEPLOYMENTS, ENVIRONMENTS, VAULTS, id_of
from roost.cli.screen import clean
from roost.cli.table import print_json, print_table, when
from roost.cli.vaults import changed_metadata, notes_given
from roost.errors import InvalidRequest

_SAME: Final = ("name", "description", "overlap")
_OPTIONS: Final = {"trust": "trust_level", "workspace": "workspace", "harness": "harness"}
_SKIPPED: Final = {
    "missed": "no server ran then",
    "overlap": "the last run still worked",
    "queue_full": "another run waited already",
    "replaced": "a later run replaced it",
}
_DONE: Final = {"pause": "paused", "unpause": "unpaused", "archive": "archived"}


def print_deployments(client: ApiClient, *, archived: bool, limit: int, as_json: bool) -> None:
    """Print a table of the newest."""
    asked: dict[str, str | int] = {"limit": min(limit, 100)}
    if archived:
        asked["include_archived"] = "true"
    found = list(islice(client.pages(DEPLOYMENTS.path, asked), limit))
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "name", "status", "schedule", "next", "last"],
        [
            [d["id"], d["name"], _status(d), _schedule(d), when(_next(d)), when(_last(d))]
            for d in found
        ],
    )


def print_deployment(client: ApiClient, word: str, *, as_json: bool) -> None:
    """One of them, and when it runs."""
    found = client.get(_at(client, word))
    if as_json:
        print_json(found)
        return
    missed, agent = found["missed_runs"], found["agent"]
    rows = {
        "id": found["id"],
        "name": found["name"],
        "description": found["description"] or "",
        "status": _status(found),
        "agent": f"{agent['id']}, version {agent['version']}",
        "environment": found["environment_id"],
        "vaults": ", ".join(found["vault_ids"]),
        **{said: found[name] or "" for said, name in _OPTIONS.items()},
        "schedule": _schedule(found) or "none: by hand only",
        "missed": f"{missed['policy']}, {missed['window_seconds']} seconds back",
        "overlap": found["overlap"],
        "next": ", ".join(when(time) for time in _upcoming(found)),
        "last": when(_last(found)),
        **found["metadata"],
    }
    for name, value in rows.items():
        print(f"{clean(name):<12} {clean(str(value))}".rstrip())
    print(f"\nrun it now:  roost deployment run {found['id']}")
    print(f"its runs:    roost deployment runs {found['id']}")


def create_deployment(client: ApiClient, said: Mapping[str, Any], *, as_json: bool) -> None:
    """Make one and print its id."""
    made = client.post(DEPLOYMENTS.path, dict(_fields(client, said, {})))
    if as_json:
        print_json(made)
    else:
        print(made["id"])


def edit_deployment(
    client: ApiClient, word: str, said: Mapping[str, Any], *, as_json: bool
) -> None:
    """Change what is said. :raises InvalidRequest: nothing is said"""
    if not said:
        raise InvalidRequest("say what to change", hint="For example: --cron '0 9 * * 1-5'")
    path = _at(client, word)
    _say("changed", client.post(path, dict(_fields(client, said, client.get(path)))), as_json)


def act_on_deployment(client: ApiClient, word: str, act: str, *, as_json: bool) -> None:
    """Pause, unpause or archive it."""
    _say(_DONE[act], client.post(f"{_at(client, word)}/{act}", {}), as_json)


def run_deployment(client: ApiClient, word: str, *, as_json: bool) -> bool:
    """Run it now; whether that made a session."""
    run = client.post(f"{_at(client, word)}/run", {})
    error = run["error"]
    if as_json:
        print_json(run)
    else:
        print(run["session_id"] if error is None else clean(f"{error['type']}: {error['message']}"))
    return error is None


def print_runs(
    client: ApiClient, word: str, state: str | None, limit: int, *, as_json: bool
) -> None:
    """All runs, newest first."""
    asked: dict[str, str | int] = {"limit": min(limit, 100)}
    if state is not None:
        asked["state"] = state
    path = at("roost", "v1", "deployments", id_of(client, word, DEPLOYMENTS), "runs")
    found = list(islice(client.pages(path, asked), limit))
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "time", "by", "state", "session", "why"],
        [
            [r["id"], _time(r), _trigger(r), r["state"], r["session_id"] or "", _why(r)]
            for r in found
        ],
    )


# What is said, as the API has it


def _fields(client: ApiClient, said: Mapping[str, Any], before: Json) -> Iterator[tuple[str, Any]]:
    """What was said, by the names of the API. `before` is what is to be changed; nothing of a new one."""
    yield from ((name, said[name]) for name in _SAME if name in said)
    yield from ((_OPTIONS[name], said[name] or None) for name in _OPTIONS if name in said)
    if "agent" in said:
        yield "agent", id_of(client, said["agent"], AGENTS)
    if "environment" in said:
        yield "environment_id", id_of(client, said["environment"], ENVIRONMENTS)
    if "message" in said:
        content = [{"type": "text", "text": said["message"]}]
        yield "initial_events", [{"type": "user.message", "content": content}]
    if "vault" in said:
        yield "vault_ids", [id_of(client, vault, VAULTS) for vault in said["vault"] if vault]
    if "metadata" in said:
        notes = notes_given(said["metadata"])
        yield from (changed_metadata(notes) if before else {"metadata": notes}).items()
    yield from _when_it_runs(said, before)


def _when_it_runs(said: Mapping[str, Any], before: Json) -> Iterator[tuple[str, Any]]:
    """The schedule and what becomes of missed times: the API wants each whole, so what was is kept."""
    if said.get("cron") == "":
        yield "schedule", None
    elif "cron" in said or "timezone" in said:
        was = before.get("schedule") or {}
        expression = said.get("cron", was.get("expression"))
        if expression is None:
            raise InvalidRequest("--timezone is for a schedule: give one with --cron")
        zone = said.get("timezone", was.get("timezone", "UTC"))
        yield "schedule", {"type": "cron", "expression": expression, "timezone": zone}
    names = {"missed": "policy", "window": "window_seconds"}
    if given := {names[name]: said[name] for name in names if name in said}:
        yield "missed_runs", {**before.get("missed_runs", {}), **given}


# Words


def _at(client: ApiClient, word: str) -> str:
    return at("v1", "deployments", id_of(client, word, DEPLOYMENTS))


def _say(what: str, answer: Json, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print(f"{what} {answer['id']}")


def _status(found: Json) -> str:
    if found["archived_at"] is not None:
        return "archived"
    reason = found["paused_reason"]
    if reason is None or reason["type"] == "manual":
        return str(found["status"])
    return f"paused: {reason['error']['type']}"


def _schedule(found: Json) -> str:
    schedule = found["schedule"]
    return "" if schedule is None else f"{schedule['expression']} ({schedule['timezone']})"


def _upcoming(found: Json) -> list[str]:
    return list((found["schedule"] or {}).get("upcoming_runs_at", []))


def _next(found: Json) -> str | None:
    """When it starts something by itself."""
    return next(iter(_upcoming(found)), None) if found["status"] == "active" else None


def _last(found: Json) -> str | None:
    return (found["schedule"] or {}).get("last_run_at")


def _time(run: Json) -> str:
    return when(run["trigger_context"].get("scheduled_at", run["created_at"]))


def _trigger(run: Json) -> str:
    return "schedule" if run["trigger_context"]["type"] == "schedule" else "hand"


def _why(run: Json) -> str:
    """Why a run has no session."""
    if (error := run["error"]) is not None:
        return f"{error['type']}: {error['message']}"
    if (skipped := run["skipped"]) is None:
        return ""
    count, since = skipped["count"], skipped["since"]
    more = f"; {count} times since {when(since)}" if count > 1 else ""
    return f"{_SKIPPED.get(skipped['reason'], skipped['reason'])}{more}"
