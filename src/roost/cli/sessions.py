"""`roost sessions` and `roost logs`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import islice

from roost.cli.client import ApiClient, Json, at
from roost.cli.follow import Following, past
from roost.cli.screen import call_of, clean, folded, text_of
from roost.cli.table import print_json, print_table, when


def print_sessions(client: ApiClient, *, archived: bool, limit: int, as_json: bool) -> None:
    """Print a table of the newest sessions."""
    params: dict[str, str | int | list[str]] = {"limit": min(limit, 100)}
    if archived:
        params["include_archived"] = "true"
    found = list(islice(client.pages("/v1/sessions", params), limit))
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "status", "trust", "agent", "created", "title"],
        [
            [
                s["id"],
                s["status"],
                s.get("trust_level", ""),
                s["agent"]["name"],
                when(s["created_at"]),
                s["title"] or "",
            ]
            for s in found
        ],
    )


def print_session(client: ApiClient, session_id: str, *, as_json: bool) -> None:
    """One session, and how to go on with it."""
    session = client.get(at("v1", "sessions", session_id))
    if as_json:
        print_json(session)
        return
    usage = session["usage"]
    rows = {
        "id": session["id"],
        "status": session["status"] + (" (archived)" if session["archived_at"] else ""),
        "title": session["title"] or "",
        "agent": f"{session['agent']['name']}, version {session['agent']['version']}",
        "harness": session.get("harness", ""),
        "trust": session.get("trust_level", ""),
        "sandbox": session.get("sandbox") or "",
        "environment": session["environment_id"],
        "vaults": ", ".join(session.get("vault_ids", [])),
        "created": when(session["created_at"]),
        "updated": when(session["updated_at"]),
        "tokens": f"{usage.get('input_tokens', 0)} in, {usage.get('output_tokens', 0)} out",
        "active": f"{usage.get('active_seconds', 0):.1f} s",
    }
    for name, value in rows.items():
        print(f"{name:<12} {clean(value)}")
    print(f"\ntalk to it:  roost chat --session {session['id']}")
    print(f"its log:     roost logs {session['id']}")


def remove_sessions(client: ApiClient, session_ids: Sequence[str], *, as_json: bool) -> None:
    """Delete each; the first that cannot be deleted ends it."""
    for session_id in session_ids:
        answer = client.delete(at("v1", "sessions", session_id))
        if as_json:
            print_json(answer)
        else:
            print(f"deleted {answer['id']}")


def print_log(client: ApiClient, session_id: str, *, follow: bool, as_json: bool) -> None:
    """The log so far; with `follow`, then what comes, over lost connections, until Ctrl-C."""
    log = Following(
        client,
        session_id,
        on_loss=lambda: print("reconnecting…", file=sys.stderr),
        on_return=lambda: print("connected again", file=sys.stderr),
    )
    client.get(at("v1", "sessions", session_id))  # an unknown id is an error, not an empty log
    try:
        for event in log.events() if follow else past(client, session_id, log):
            print(_as_json(event) if as_json else _line(event), flush=True)
    except KeyboardInterrupt:
        return


def _as_json(event: Json) -> str:
    return json.dumps(event, ensure_ascii=False)


def _line(event: Json) -> str:
    moment = when(event.get("processed_at")) or "(queued)"
    return f"{moment:<19}  {event['type']:<28}  {clean(_gist(event))}".rstrip()


def _gist(event: Json) -> str:
    """What an event says, on one line."""
    if "withdrawn_at" in event:
        return f"(withdrawn) {folded(text_of(event))}".rstrip()
    if "content" in event:
        return folded(text_of(event))
    if "name" in event:
        return call_of(event)
    if "error" in event:
        return folded(
            f"{event['error'].get('code') or event['error']['type']}: {event['error']['message']}"
        )
    if "stop_reason" in event:
        return str(event["stop_reason"]["type"])
    return ""
