"""`roost sessions answer` and `roost sessions interrupt`."""

from __future__ import annotations

import json
from typing import NamedTuple

from roost.cli.asked import (
    chosen,
    in_words,
    is_permission,
    permission,
    questions_of,
    result,
    send,
    waiting,
)
from roost.cli.client import ApiClient, Json
from roost.cli.table import print_json, print_table
from roost.errors import InvalidRequest


class Given(NamedTuple):
    """What was said on the command line."""

    answer: str | None
    allow: bool = False
    deny: bool = False
    why: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether only to look."""
        return self.answer is None and not self.allow and not self.deny


def answer_session(
    client: ApiClient, session_id: str, given: Given, call_id: str | None, *, as_json: bool
) -> None:
    """Answer one of the calls that it waits for, or list them. :raises InvalidRequest: none fits"""
    calls = waiting(client, session_id)
    if given.is_nothing:
        _list(calls, as_json=as_json)
        return
    sent = send(client, session_id, _event(_picked(calls, call_id), given))
    if as_json:
        print_json({"id": sent})
    else:
        print("answered")


def interrupt_session(client: ApiClient, session_id: str, *, as_json: bool) -> None:
    """Stop what its agent does now."""
    sent = send(client, session_id, {"type": "user.interrupt"})
    if as_json:
        print_json({"id": sent})
    else:
        print("interrupted")


def _list(calls: list[Json], *, as_json: bool) -> None:
    if as_json:
        print_json(calls)
    elif calls:
        rows = [
            [call["id"], "permission" if is_permission(call) else "answer", in_words(call)]
            for call in calls
        ]
        print_table(["CALL", "WAITS FOR", "WHAT"], rows)
    else:
        print("it waits for nothing")


def _picked(calls: list[Json], call_id: str | None) -> Json:
    for call in calls:
        if call_id in (None, call["id"]):
            return call
    if call_id is None:
        raise InvalidRequest("the session waits for nothing")
    raise InvalidRequest(f"the session does not wait for {call_id}")


def _event(call: Json, given: Given) -> Json:
    if is_permission(call):
        if given.answer is not None or given.allow == given.deny:
            raise InvalidRequest(
                f"it waits for permission: {in_words(call)}", hint="Say --allow or --deny."
            )
        return permission(call, given.allow, given.why)
    if given.answer is None:
        raise InvalidRequest(
            f"it waits for an answer: {in_words(call)}", hint="Give the answer after the session."
        )
    questions = questions_of(call)
    if len(questions) != 1:
        return result(call, given.answer)
    text = str(questions[0].get("question", ""))
    return result(call, json.dumps({"answers": {text: chosen(questions[0], given.answer)}}))
