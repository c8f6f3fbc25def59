"""Why a request is not carried."""

from __future__ import annotations

from roost.ports.egress import Reason


class Refusal(Exception):
    """The answer to a request that is not carried: a status, and a sentence for whoever asked.

    With a `reason` it is a rule that said no, and the session's log hears of it; without one, the
    request was malformed or the far side did not answer. A `hint` goes into the log beside a reason
    that does not speak for itself.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: Reason | None = None,
        host: str = "",
        port: int = 0,
        hint: str = "",
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.host = host
        self.port = port
        self.hint = hint
        self.retry_after = retry_after
