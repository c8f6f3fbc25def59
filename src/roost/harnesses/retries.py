"""What a failed model request means for the session, and how long to wait before the next one.

A failure is judged by one question: what would have to change for the same request to work?

* **retrying**: nothing but time. No connection, a stream that broke off, 408, 409, 429, 5xx, 529.
* **exhausted**: something outside the conversation. The operator's key (401, 403), the operator's
  bill (402), the agent's configuration or one bad request (other 4xx), or a conversation that has
  grown too large (413), which a rewind mends. The turn is lost, the session waits; the next message
  tries again, so a session outlives a revoked key or an empty account.

No failure of a model is terminal, whichever harness asks.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

Retry = Literal["retrying", "exhausted"]

_LONGEST_BACKOFF = 60.0
_LONGEST_ASKED = 600.0  # a server that asks for more is asked again after this
_LONGEST_MESSAGE = 2000

_STATUSES = {  # of errors that come inside a stream, which have a type only
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_ERRORS = {  # the rest are `model_request_failed_error`
    402: "billing_error",
    429: "model_rate_limited_error",
    529: "model_overloaded_error",
}
_NOT_REACHED = (502, 504)
_OURS = "roost: "  # how the egress begins its own refusals, for which the operator's account is not the reason
_FIX_THE_BILL = "The operator has to settle the model account's billing."
_MAKE_IT_SMALLER = "Go back to before what made the conversation so large (rewind, or fork), or begin a new session."
_KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}


class ModelFailure(Exception):
    """A model request that gave no answer. `wait`: how long the model asked to be left alone."""

    def __init__(
        self,
        message: str,
        error: str = "model_request_failed_error",
        retry: Retry = "retrying",
        wait: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message[:_LONGEST_MESSAGE]
        self.error = error
        self.retry: Retry = retry
        self.wait = wait


def fix_the_key(upstream: str, vault: str | None = None) -> str:
    """What somebody has to do about a key that the model does not take: the operator's, or a vault's."""
    if vault is not None:
        return f"The key in the vault {vault} has to be replaced by one the model accepts."
    name = _KEYS.get(upstream, "the key of its upstream")
    return f"The operator has to set {name} to a key the model accepts."


def refused(
    kind: str,
    message: str,
    status: int | None = None,
    wait: float | None = None,
    *,
    about_key: str = fix_the_key("anthropic"),
) -> ModelFailure:
    """The failure behind an error the API answered with. `about_key` is the advice for a key that it does not take."""
    status = status or _STATUSES.get(kind, 500)
    verb = "did not answer" if status in _NOT_REACHED else "refused the request"
    said = f"The model {verb} ({status} {kind}): {message}"
    advice = {413: _MAKE_IT_SMALLER, 401: about_key, 402: _FIX_THE_BILL, 403: about_key}
    if status in advice and _OURS not in message:
        said = f"{said[: _LONGEST_MESSAGE // 2]} {advice[status]}"
    error = _ERRORS.get(status, "model_request_failed_error")
    return ModelFailure(said, error, _judge(status), wait)


def _judge(status: int) -> Retry:
    return "retrying" if status in (408, 409, 429) or status >= 500 else "exhausted"


def asked_to_wait(headers: Mapping[str, str]) -> float | None:
    """The seconds in `retry-after-ms` or `retry-after`, which may also be a date."""
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / scale
        except (KeyError, ValueError):
            continue
        return _bounded(seconds)
    return _until_date(headers.get("retry-after", ""))


def pause(tries: int, first: float, asked: float | None) -> float:
    """The seconds to wait after `tries` failures: doubling, spread out, at least what was asked."""
    doubled = min(first * 2.0 ** min(tries - 1, 30), _LONGEST_BACKOFF)
    return max(doubled * random.uniform(0.75, 1.0), asked or 0.0)


def _until_date(text: str) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    left = (moment - datetime.now(UTC)).total_seconds()
    return _bounded(left)


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), _LONGEST_ASKED)  # in this order `nan` is 0 too
