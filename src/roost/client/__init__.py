"""Clients: for the WebSocket gateway, which reconnects by itself; and for agents in a pool elsewhere (`SessionProxy`).

    async with Client("http://127.0.0.1:8700", key).session(session_id) as chat:
        await chat.send("Hello")          # returns when it is committed
        async for message in chat:
            if isinstance(message, Done):
                break

A connection that breaks is opened again: the session goes on at the message after the last one that
was seen, and what was not acknowledged is sent again under its own id, so that it is there once.
"""

from roost.client.chat import Chat, Client, Closed, Refused
from roost.client.keepers import DirectoryKeeper, StateKeeper
from roost.client.messages import (
    Ack,
    AgentStatus,
    AskUserQuestion,
    Chunk,
    ConnectionStatus,
    Done,
    Error,
    MemoryStats,
    Message,
    SdkMessage,
    SessionStatus,
    StreamEnd,
    StreamStart,
    TaskUpdated,
    ToolPermissionRequest,
    Withdrawn,
)
from roost.client.session_proxy import SessionProxy
from roost.dynamic_sessions import PoolRefused, PoolUnavailable, azure_token

__all__ = [
    "Ack",
    "AgentStatus",
    "AskUserQuestion",
    "Chat",
    "Chunk",
    "Client",
    "Closed",
    "ConnectionStatus",
    "DirectoryKeeper",
    "Done",
    "Error",
    "MemoryStats",
    "Message",
    "PoolRefused",
    "PoolUnavailable",
    "Refused",
    "SdkMessage",
    "SessionProxy",
    "SessionStatus",
    "StateKeeper",
    "StreamEnd",
    "StreamStart",
    "TaskUpdated",
    "ToolPermissionRequest",
    "Withdrawn",
    "azure_token",
]
