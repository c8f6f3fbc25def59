"""The messages that clients send: their fields, and the events of the API that they become."""

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
    """Follows a session, or creates one and follows it."""

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
    """A message for the agent: text, or content blocks."""

    content: str | list[Json]
    id: Name | None = None


class PermissionResponse(msgspec.Struct, tag="permission_response"):
    """Says whether the agent may use a tool that it has asked for."""

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
    """Interrupts what the agent is doing."""

    id: Name | None = None


class Close(msgspec.Struct, tag="close"):
    """Ends the connection."""


InputMessage = UserMessage | PermissionResponse | AskUserAnswer | Interrupt
ClientMessage = Start | InputMessage | Close

_decode: Final = msgspec.json.Decoder(ClientMessage).decode
_encode: Final = msgspec.json.Encoder().encode
_events: Final = body_of("sessions.events.send")
_session: Final = body_of("sessions.create")


def parse(frame: str) -> ClientMessage:
    """The message in a frame. :raises NotJson: :raises InvalidRequest: naming the field"""
    try:
        message: ClientMessage = _decode(frame)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise NotJson() from None
    if "\\u0000" in frame:
        raise InvalidRequest("the message must not contain NUL characters")
    return message


def event_of(message: InputMessage) -> Json:
    """The event that an input becomes, checked like one of the API's. :raises InvalidRequest:"""
    event = _event(message)
    if message.id is not None:
        event["client_id"] = message.id
    checked: Json = _events.parse({"events": [event]})["events"][0]
    return checked


def _event(message: InputMessage) -> Json:
    match message:
        case UserMessage(content=content):
            return {"type": "user.message", "content": _blocks(content)}
        case PermissionResponse():
            return _confirmation(message)
        case AskUserAnswer(answers=answers):
            if answers in (None, {}, []) and not message.isError:
                raise InvalidRequest(
                    "answers: must not be empty",
                    hint="Give an answer for each question, a text for all of them, or the result of "
                    "the tool; if there is none, say so with isError.",
                )
            text = answers if isinstance(answers, str) else _encode(answers).decode()
            return {
                "type": "user.custom_tool_result",
                "custom_tool_use_id": message.requestId,
                "content": _blocks(text),
                "is_error": message.isError,
            }
        case Interrupt():
            return {"type": "user.interrupt"}


def _confirmation(message: PermissionResponse) -> Json:
    event: Json = {
        "type": "user.tool_confirmation",
        "tool_use_id": message.requestId,
        "result": message.decision,
    }
    if message.decision == "deny" and message.message:
        event["deny_message"] = message.message
    if message.modifiedInput is not None:
        event["modified_input"] = message.modifiedInput
    return event


def _blocks(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def creation_of(message: Start) -> tuple[Json, Receipt | None]:
    """The body of the session that a `start` asks for, and what it is remembered by.

    :raises InvalidRequest: naming the field
    """
    for field in ("agent", "environmentId"):
        if not getattr(message, field):
            raise InvalidRequest(f"{field}: required to create a session, or give a sessionId")
    metadata = dict(message.metadata or {})
    if message.projectId is not None:
        metadata["project_id"] = message.projectId
    given: Json = {
        "agent": _agent(message),
        "environment_id": message.environmentId,
        "title": message.title,
        "metadata": metadata,
        "trust_level": message.trustLevel,
        "workspace": message.workspace,
        "mount_scope": message.mountScope,
        "sandbox_fallback": message.sandboxFallback,
        "harness": message.harness,
        "task_id": message.taskId,
    }
    body = _session.parse({name: value for name, value in given.items() if value is not None})
    receipt = None if message.id is None else Receipt(f"w:{message.id}", fingerprint(body))
    return body, receipt


def ignored_in(message: Start, spec: Spec) -> list[str]:
    """The fields of a `start` that differ from the session it names, which stays as it was created."""
    agent = message.agent.get("id") if isinstance(message.agent, dict) else message.agent
    asked_and_had = {
        "agent": (agent, spec.agent.get("id")),
        "environmentId": (message.environmentId, spec.environment_id),
        "systemPrompt": (message.systemPrompt, spec.agent.get("system")),
        "taskId": (message.taskId, spec.task_id),
        "projectId": (message.projectId, spec.metadata.get("project_id")),
        "trustLevel": (message.trustLevel, spec.trust_level),
        "workspace": (message.workspace, spec.workspace),
        "mountScope": (message.mountScope, spec.mount_scope),
        "sandboxFallback": (message.sandboxFallback, spec.sandbox_fallback),
        "harness": (message.harness, spec.harness),
        "title": (message.title, spec.title),
    }
    other = [name for name, (asked, had) in asked_and_had.items() if asked not in (None, had)]
    unknown = (message.metadata or {}).items() - spec.metadata.items()
    return [*other, "metadata"] if unknown else other


def _agent(message: Start) -> str | Json | None:
    if message.systemPrompt is None:
        return message.agent
    named = {"id": message.agent} if isinstance(message.agent, str) else dict(message.agent or {})
    return {**named, "type": "agent_with_overrides", "system": message.systemPrompt}
