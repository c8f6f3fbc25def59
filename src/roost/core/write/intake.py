"""WRITE: an input is durable before anybody is told that it was accepted."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from anyio.lowlevel import checkpoint

from roost.core.write.standby import StandbyRunners
from roost.domain.events import Draft
from roost.domain.fitting import misfit
from roost.errors import WrongInput
from roost.ports.log import Accepted, Log, Receipt
from roost.ports.notifier import WORK, Notifier

_log = logging.getLogger(__name__)


class Intake:
    """Accepts what clients send."""

    def __init__(
        self, log: Log, notifier: Notifier, standby: StandbyRunners, *, max_queued: int
    ) -> None:
        self._log = log
        self._standby = standby
        self._notifier = notifier
        self._max_queued = max_queued

    async def accept(
        self,
        session_id: str,
        drafts: Sequence[Draft],
        receipts: Sequence[Receipt | None] = (),
    ) -> Accepted:
        """Commit the inputs, then notify. :raises RoostError: see `Log.accept`; nothing was kept
        :raises WrongInput: a tool is to have an input that it cannot take

        Whoever is cancelled meanwhile, because its client hung up, has said it all the same: the store
        commits what it was given, so the runner is told now, and not when it next looks by itself.
        """
        if "user.tool_confirmation" in [draft.type for draft in drafts]:
            await self._check_inputs(session_id, drafts)
        handoff = self._standby.handoff_of(session_id)
        handoff.expect()

        def ended(accepted: Accepted | None) -> None:
            try:
                if accepted is not None:
                    handoff.take(accepted)
                    if not accepted.repeated:
                        self._notify(session_id, accepted)
            finally:
                handoff.end()

        accepted = await self._log.accept(
            session_id,
            drafts,
            receipts=receipts,
            max_queued=self._max_queued,
            standby=handoff.standby,
            ended=ended,
        )
        if accepted.begun is not None:
            await checkpoint()  # the agent has it first, and then its sender is told
        return accepted

    async def _check_inputs(self, session_id: str, drafts: Sequence[Draft]) -> None:
        """Before it is accepted: afterwards nobody is there who could be told."""
        for draft in drafts:
            if draft.type != "user.tool_confirmation" or b'"modified_input"' not in draft.body:
                continue
            fields = msgspec.json.decode(draft.body)
            at = await self._log.seq_of(session_id, fields["tool_use_id"])
            for call in await self._log.read(session_id, at - 1, 1) if at else ():
                name, asked = call.fields.get("name", ""), call.fields.get("input") or {}
                if wrong := misfit(name, asked, fields.get("modified_input") or {}):
                    raise WrongInput(f"modified_input.{wrong}")

    def _notify(self, session_id: str, accepted: Accepted) -> None:
        has_a_runner = self._notifier.notify(inbox(session_id))
        self._notifier.notify(session_id)
        if accepted.woke and not has_a_runner:
            self._notifier.notify(WORK)
        _log.info(
            "accepted %d inputs",
            len(accepted.entries),
            extra={"action": "accept", "session": session_id, "seq": accepted.entries[-1].seq},
        )


def inbox(session_id: str) -> str:
    """The topic that a session's runner subscribes to: it need not wake for what it writes itself."""
    return f"inbox:{session_id}"
