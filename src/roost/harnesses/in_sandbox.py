"""A conversation with a program in a sandbox: opened with tasks of its own, and closed whatever happens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup, TaskStatus

from roost.ports.harness import Brief, Conversation


class ProgramConversation(Conversation, Protocol):
    """A conversation whose program can be started ahead, and has to be ended."""

    async def start_ahead(self, *, task_status: TaskStatus[None]) -> None:
        """Start the program before there is anything to tell it."""
        ...

    async def close(self) -> None:
        """End the program."""
        ...


C = TypeVar("C", bound=ProgramConversation)


@asynccontextmanager
async def opened(
    brief: Brief, conversation_of: Callable[[TaskGroup], C]
) -> AsyncGenerator[C, None]:
    """A conversation, made with the group of its tasks, for as long as the context lasts."""
    try:
        async with anyio.create_task_group() as tasks:
            conversation = conversation_of(tasks)
            if brief.start.ahead:
                await tasks.start(conversation.start_ahead)
            try:
                yield conversation
            finally:
                with anyio.CancelScope(shield=True):
                    await conversation.close()
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:  # callers look for their own errors, not for groups
        raise group.exceptions[0] from None
