"""`roost sessions turns`, `fork` and `rewind`."""

from __future__ import annotations

from roost.cli.client import ApiClient, Json, at
from roost.cli.table import print_json, print_table, when


def print_turns(client: ApiClient, session_id: str, *, as_json: bool) -> None:
    """The turns that have ended."""
    turns = client.get(at("roost", "v1", "sessions", session_id, "turns"))["data"]
    if as_json:
        print_json(turns)
        return
    print_table(
        ["turn", "ended", "last event"],
        [[str(turn["number"]), when(turn["ended_at"]), turn["event_id"]] for turn in turns],
    )


def fork_session(
    client: ApiClient,
    session_id: str,
    place: str | None,
    title: str | None,
    *,
    keep_files: bool,
    as_json: bool,
) -> None:
    """Another session, as this one was."""
    body: Json = {} if place is None else {"at": turn_of(place)}
    if title is not None:
        body["title"] = title
    if keep_files:
        body["files"] = "keep"
    fork = client.post(at("roost", "v1", "sessions", session_id, "fork"), body)
    if as_json:
        print_json(fork)
    else:
        files = "those of its workspace, as they are" if keep_files else "a copy, as they were"
        print(f"{fork['id']}\nits files:   {files}\ntalk to it:  roost chat --session {fork['id']}")


def rewind_session(
    client: ApiClient, session_id: str, place: str, *, keep_files: bool, as_json: bool
) -> None:
    """The same session, as it was."""
    body: Json = {"to": turn_of(place), "files": not keep_files}
    session = client.post(at("roost", "v1", "sessions", session_id, "rewind"), body)
    if as_json:
        print_json(session)
    else:
        files = "stay as they are" if keep_files else "go back when its agent next starts"
        print(f"{session_id} goes on after {place}; its files {files}")


def turn_of(place: str) -> str | int:
    """A turn by its number, or by an event's id."""
    return int(place) if place.isdecimal() and len(place) < 10 else place
