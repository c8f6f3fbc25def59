"""What an agent waits for: shown to a person, and answered as the API wants it."""

from __future__ import annotations

import json
from collections.abc import Callable

from roost.cli.client import ApiClient, Json, at
from roost.cli.screen import clean, whole_call
from roost.errors import InvalidRequest
from roost.ids import mint

QUESTION = "AskUserQuestion"
_EVENTS_READ = 500
Ask = Callable[[str], str]


def waiting(client: ApiClient, session_id: str) -> list[Json]:
    """The calls that a session waits to be answered, in the order in which they were made."""
    ids = client.get(at("v1", "sessions", session_id)).get("waiting_for") or []
    path, found = at("v1", "sessions", session_id, "events"), {}
    for event in client.pages(path, {"order": "desc", "limit": _EVENTS_READ}) if ids else ():
        if event["id"] in ids:
            found[event["id"]] = event
        if len(found) == len(ids):
            break
    return [found.get(i, {"id": i, "type": "?", "name": i}) for i in ids]


def send(client: ApiClient, session_id: str, event: Json) -> str:
    """Send an event, through passing trouble; gives its id."""
    # The id makes sending it again harmless: the server keeps one, however often it comes.
    named = {"client_id": mint("cli"), **event}
    path = at("v1", "sessions", session_id, "events")
    return str(client.post_surely(path, {"events": [named]})["data"][0]["id"])


def is_permission(call: Json) -> bool:
    """Whether it waits to be allowed; else it waits for a result, or for the answer to a question."""
    return call["type"] in ("agent.tool_use", "agent.mcp_tool_use")


def permission(call: Json, allow: bool, why: str = "") -> Json:
    """The event that allows a call, or does not."""
    event = {"type": "user.tool_confirmation", "tool_use_id": call["id"]}
    if allow:
        return event | {"result": "allow"}
    return event | {"result": "deny"} | ({"deny_message": why} if why else {})


def result(call: Json, text: str) -> Json:
    """The event with the answer to a question, or with the result of a custom tool."""
    content = [{"type": "text", "text": text}]
    return {
        "type": "user.custom_tool_result",
        "custom_tool_use_id": call["id"],
        "content": content,
    }


def asked(call: Json, ask: Ask, show: Callable[[str], None]) -> Json:
    """Put a call to a person; gives the event that answers it."""
    if is_permission(call):
        return permission(call, ask(f"allow {whole_call(call)}? [y/N] ").lower() in ("y", "yes"))
    questions = questions_of(call)
    if not questions:
        return result(call, ask(f"the result of {whole_call(call)}: "))
    return result(
        call, json.dumps({"answers": dict(_answered(each, ask, show) for each in questions)})
    )


def questions_of(call: Json) -> list[Json]:
    """The questions of a call; none if it is no question but a custom tool's."""
    given = (call.get("input") or {}).get("questions")
    if call.get("name") != QUESTION or not isinstance(given, list):
        return []
    return [each for each in given if isinstance(each, dict)]


def in_words(call: Json) -> str:
    """What it waits for, on one line."""
    questions = questions_of(call)
    if not questions:
        return whole_call(call)
    return " / ".join(clean(f"{each.get('question', '')}{_choices(each)}") for each in questions)


def _choices(question: Json) -> str:
    labels = [str(option.get("label", "")) for option in options_of(question)]
    return f" ({', '.join(labels)})" if labels else ""


def options_of(question: Json) -> list[Json]:
    """What can be chosen."""
    given = question.get("options")
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []


def _answered(question: Json, ask: Ask, show: Callable[[str], None]) -> tuple[str, str | list[str]]:
    text, options = str(question.get("question", "")), options_of(question)
    show(f"? {text}")
    for number, option in enumerate(options, 1):
        about = option.get("description")
        show(f"  {number}. {option.get('label', '')}{f': {about}' if about else ''}")
    many = bool(question.get("multiSelect"))
    how = "numbers, or your own words" if many else "a number, or your own words"
    while not (said := ask(f"{how}: " if options else "answer: ")):
        pass
    return text, chosen(question, said)


def chosen(question: Json, said: str) -> str | list[str]:
    """The label of the number that was typed, or of several; or the words as they are.

    :raises InvalidRequest: there is no such number
    """
    labels = [str(option.get("label", "")) for option in options_of(question)]
    parts = [part for part in said.replace(",", " ").split() if part]
    if not labels or not all(part.isdigit() for part in parts):
        return said
    if any(not 1 <= int(part) <= len(labels) for part in parts):
        raise InvalidRequest(f"there is no choice {said}", hint=f"There are 1 to {len(labels)}.")
    found = [labels[int(part) - 1] for part in parts]
    return found if question.get("multiSelect") else found[0]
