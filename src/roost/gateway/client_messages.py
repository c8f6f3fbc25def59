"""What clients send: the messages, their fields, and the events they become."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from roost.api.framework.call import fingerprint
from roost.api.operations import body_of
from roost.domain.session import Spec
from roost.errors import InvalidRequest, NotJson
from roost.ports.log import Receipt

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Json = dict[str, Any]


class Start(msgspec.Struct, tag="start"):
    """Follow a session, or make one."""

    id: Name | None = None
    sessionId: Name | None = None
    after: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    agent: str | Json | None = None
    environmentId: str | None = None
    systemPrompt: str | None = None
    taskId: str | None = None
    projectId: str | None = None
    trustLevel: str | None = None
    workspace: str | None = None
    mountScope: str | None = None
    sandboxFallback: str | None = None
    harness: str | None = None
    title: str | None = None
    metadata: dict[str, str] | None = None


class UserMessage(msgspec.Struct, tag="message"):
    """Something for the agent."""

    content: str | list[Json]
    id: Name | None = None


class PermissionResponse(msgspec.Struct, tag="permission_response"):
    """May the tool be used?"""

    requestId: Name
    decision: Literal["allow", "deny"]
    message: str | None = None
    modifiedInput: Json | None = None
    id: Name | None = None


class AskUserAnswer(msgspec.Struct, tag="ask_user_answer"):
    """The answer to a question, or the result of a custom tool."""

    requestId: Name
    answers: Any
    isError: bool = False
    id: Name | None = None


class Interrupt(msgspec.Struct, tag="interrupt"):
    """Stop."""

    id: Name | None = None


class Close(msgspec.Struct, tag="close"):
    """Goodbye."""


InputMessage = UserMessage | PermissionResponse | AskUserAnswer | Interrupt
ClientMessage = Start | InputMessage | Close

_decode: Final = msgspec.json.Decoder(ClientMessage).decode
_encode: Final = msgspec.json.Encoder().encode
_events: Final = body_of("sessions.events.send")
_session: Final = body_of("sessions.create")


def parse(frame: str) -> ClientMessage:
    """What a frame says. :raises NotJson: :raises InvalidRequest: naming the field"""
    try:
        word: ClientMessage = _decode(frame)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise NotJson() from None
    if "\\u0000" in frame:
        raise InvalidRequest("the message must not contain NUL characters")
    return word


def event_of(word: InputMessage) -> Json:
    """The event that an input becomes, checked like one of the API's. :raises InvalidRequest:"""
    event = _event(word)
    if word.id is not None:
        event["client_id"] = word.id
    checked: Json = _events.parse({"events": [event]})["events"][0]
    return checked


def _event(word: InputMessage) -> Json:
    match word:
        case UserMessage(content=content):
            return {"type": "user.message", "content": _blocks(content)}
        case PermissionResponse():
            return _confirmation(word)
        case AskUserAnswer(answers=answers):
            if answers in (None, {}, []) and not word.isError:
                raise InvalidRequest(
                    "answers: must not be empty",
                    hint="Give an answer for each question, a text for all of them, or the result of "
                    "the tool; if there is none, say so with isError.",
                )
            said = answers if isinstance(answers, str) else _encode(answers).decode()
            return {
                "type": "user.custom_tool_result",
                "custom_tool_use_id": word.requestId,
                "content": _blocks(said),
                "is_error": word.isError,
            }
        case Interrupt():
            return {"type": "user.interrupt"}


def _confirmation(word: PermissionResponse) -> Json:
    event: Json = {
        "type": "user.tool_confirmation",
        "tool_use_id": word.requestId,
        "result": word.decision,
    }
    if word.decision == "deny" and word.message:
        event["deny_message"] = word.message
    if word.modifiedInput is not None:
        event["modified_input"] = word.modifiedInput
    return event


def _blocks(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def creation_of(word: Start) -> tuple[Json, Receipt | None]:
    """The body of the session that a `start` asks for, and what it is remembered by.

    :raises InvalidRequest: naming the field
    """
    for field in ("agent", "environmentId"):
        if not getattr(word, field):
            raise InvalidRequest(f"{field}: required to create a session, or give a sessionId")
    metadata = dict(word.metadata or {})
    if word.projectId is not None:
        metadata["project_id"] = word.projectId
    given: Json = {
        "agent": _agent(word),
        "environment_id": word.environmentId,
        "title": word.title,
        "metadata": metadata,
        "trust_level": word.trustLevel,
        "workspace": word.workspace,
        "mount_scope": word.mountScope,
        "sandbox_fallback": word.sandboxFallback,
        "harness": word.harness,
        "task_id": word.taskId,
    }
    body = _session.parse({name: value for name, value in given.items() if value is not None})
    receipt = None if word.id is None else Receipt(f"w:{word.id}", fingerprint(body))
    return body, receipt


def ignored_in(word: Start, spec: Spec) -> list[str]:
    """The fields of a `start` that ask for something else than the session was made with, and keeps."""
    agent = word.agent.get("id") if isinstance(word.agent, dict) else word.agent
    asked_and_had = {
        "agent": (agent, spec.agent.get("id")),
        "environmentId": (word.environmentId, spec.environment_id),
        "systemPrompt": (word.systemPrompt, spec.agent.get("system")),
        "taskId": (word.taskId, spec.task_id),
        "projectId": (word.projectId, spec.metadata.get("project_id")),
        "trustLevel": (word.trustLevel, spec.trust_level),
        "workspace": (word.workspace, spec.workspace),
        "mountScope": (word.mountScope, spec.mount_scope),
        "sandboxFallback": (word.sandboxFallback, spec.sandbox_fallback),
        "harness": (word.harness, spec.harness),
        "title": (word.title, spec.title),
    }
    other = [name for name, (asked, had) in asked_and_had.items() if asked not in (None, had)]
    unknown = (word.metadata or {}).items() - spec.metadata.items()
    return [*other, "metadata"] if unknown else other


def _agent(word: Start) -> str | Json | None:
    if word.systemPrompt is None:
        return word.agent
    named = {"id": word.agent} if isinstance(word.agent, str) else dict(word.agent or {})
    return {**named, "type": "agent_with_overrides", "system": word.systemPrompt}
