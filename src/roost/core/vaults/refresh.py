"""Renews the access tokens of MCP servers: once for all nodes, since a refresh token may be good for one use.

What is written, in this order: a lease on this version of the credential (`Credentials.lease`), then, after the
token endpoint's answer, both new tokens, sealed, as the next version. Only after that a new token is given to
anybody. Killed before the request: the lease runs out, and the next one who needs the token takes it. Killed
between the answer and the commit: nothing can be written ahead of an answer, so the next one tries the old
refresh token once more. Many servers accept it again for some time; where they do not, the grant is lost, and
the session is told.
"""

from __future__ import annotations

import logging
import re
import time
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import anyio
import msgspec
from msgspec.structs import replace

from roost.core.vaults.secrets import opened_parts, sealed
from roost.domain.events import Micros
from roost.domain.vault import (
    LONGEST_SECRET,
    CredentialSecrets,
    McpOAuth,
    RefreshConfig,
    VaultCredential,
)
from roost.errors import NotFound, Unavailable
from roost.ids import mint
from roost.ports.credentials import Credentials
from roost.ports.outbound import HttpAnswer, NoAnswer, Outbound
from roost.ports.seal import Seal

_log = logging.getLogger(__name__)

_LEASE_SECONDS: Final = 15.0
"""Shorter than what the usual servers accept an old refresh token for, and longer than a request may take."""

_LEASE_WITHIN: Final = 4.0
"""Seconds that a lease may take to be had. It counts from the database's moment: after a slower answer there is too
little of it left for a whole request.
"""

_PATIENCE: Final = 30.0  # seconds that somebody waits for a token that another one renews
_LOOK_AGAIN: Final = 0.2
_EARLY_SECONDS: Final = 60.0
_EARLY_PART: Final = 0.1  # of a token's life
_STILL_GOOD: Final = 5.0  # seconds that a token must have left to be sent
_COMMIT_WITHIN: Final = 60.0  # seconds in which a new token must be stored, else it is lost
_BETWEEN_REJECTIONS: Final = (
    30.0  # seconds between two renewals because a server turned a token down
)
_LONGEST_LIFE: Final = 10 * 365 * 86400
_WORD: Final = re.compile(r"[a-z_]{1,40}")
_FINAL: Final = frozenset(
    (
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
        "invalid_target",
    )
)
"""With these an authorization server says no (RFC 6749, 5.2; RFC 8707, 2). Any other error may be of something on the
way to it: a firewall, a proxy, a page that it is away.
"""

_MICROS: Final = 1_000_000


class Renewal(msgspec.Struct, frozen=True):
    """What came of a renewal: the credential as it is now, and, if it failed, the token endpoint's answer."""

    credential: VaultCredential
    failure: HttpAnswer | NoAnswer | None = None


class OAuthRefresh:
    """Gives out access tokens, and renews those that are about to expire or were turned down."""

    def __init__(self, credentials: Credentials, seal: Seal, outbound: Outbound) -> None:
        self._credentials = credentials
        self._seal = seal
        self._outbound = outbound
        self._rejected: dict[str, float] = {}  # when a token was turned down, oldest first

    async def token(self, credential: VaultCredential) -> str:
        """The token of a credential, renewed if it is time for that.

        :raises Unavailable: it has expired and cannot be renewed :raises NotFound: :raises CannotUnseal:
        """
        if credential.refresh_failed and not _is_good(credential):
            raise Unavailable(_why(credential, NoAnswer("it has turned the refresh token down")))
        if not _is_due(credential):
            return opened_parts(self._seal, credential).value
        renewal = await self._renewed(credential, can_use_old=True)
        if renewal.failure is not None and not _is_good(renewal.credential):
            raise Unavailable(_why(renewal.credential, renewal.failure))
        return opened_parts(self._seal, renewal.credential).value

    async def replaced(self, credential: VaultCredential, token: str) -> bool:
        """A server has turned this token down: whether there is another one by now.

        :raises Unavailable: it cannot be renewed :raises NotFound: :raises CannotUnseal:
        """
        if opened_parts(self._seal, credential).value != token:
            return True
        if not _can_renew(credential) or not self._may_ask_now(credential.id):
            return False
        renewal = await self._renewed(credential, can_use_old=False)
        if renewal.failure is not None:
            raise Unavailable(_why(renewal.credential, renewal.failure))
        return opened_parts(self._seal, renewal.credential).value != token

    def _may_ask_now(self, credential_id: str) -> bool:
        """Whether a token may be renewed because a server turned it down; then it is noted."""
        now = time.monotonic()
        while self._rejected and now - next(iter(self._rejected.values())) >= _BETWEEN_REJECTIONS:
            del self._rejected[next(iter(self._rejected))]
        if credential_id in self._rejected:
            return False
        self._rejected[credential_id] = now
        return True

    async def renew(self, credential: VaultCredential) -> Renewal:
        """Renew it now, whether or not it is due. :raises NotFound: :raises CannotUnseal:"""
        return await self._renewed(credential, can_use_old=False)

    async def _renewed(self, credential: VaultCredential, *, can_use_old: bool) -> Renewal:
        """The next version of it, made by us or by another one who was quicker."""
        holder, before = mint("lease"), credential.version
        give_up = time.monotonic() + _PATIENCE
        while True:
            asked = time.monotonic()
            until = await self._credentials.lease(credential, holder, _LEASE_SECONDS)
            # One that came late is asked for again below: the holder may have it once more, from then on.
            if until is not None and time.monotonic() - asked < _LEASE_WITHIN:
                # Once the request is out, its answer must be stored, whoever has lost patience meanwhile.
                with anyio.CancelScope(shield=True):
                    return await self._exchanged(credential, holder)
            credential = await self._credentials.find(credential.id)
            if credential.archived_at is not None:
                raise NotFound(f"credential {credential.id} is archived")
            if credential.refresh_failed:
                return Renewal(credential, NoAnswer("it has turned the refresh token down"))
            is_over = credential.version != before and not _is_due(credential)
            if is_over or (can_use_old and _is_good(credential)):
                return Renewal(credential)
            if time.monotonic() > give_up:
                return Renewal(credential, NoAnswer("another server is renewing it"))
            await anyio.sleep(_LOOK_AGAIN)

    async def _exchanged(self, credential: VaultCredential, holder: str) -> Renewal:
        """Ask for new tokens, with the lease."""
        auth, secrets = credential.auth, opened_parts(self._seal, credential)
        if not isinstance(auth, McpOAuth) or auth.refresh is None or not secrets.refresh_token:
            return Renewal(credential, NoAnswer("it has no refresh token"))
        headers, body = _request(auth.refresh, secrets)
        sent = [secrets.refresh_token, *filter(None, [secrets.client_secret])]
        answer = await self._outbound.post(auth.refresh.token_endpoint, headers, body, sent)
        if isinstance(answer, NoAnswer) or not _is_final(answer):
            _log.warning("a token was not renewed: %r", answer, extra=_about(credential))
            return Renewal(credential, answer)
        if (given := _tokens(answer)) is None:
            return await self._failed(credential, holder, secrets, answer)
        return await self._stored(credential, holder, secrets, given, answer)

    async def _stored(
        self,
        credential: VaultCredential,
        holder: str,
        used: CredentialSecrets,
        given: _Tokens,
        answer: HttpAnswer,
    ) -> Renewal:
        """Write the new tokens. Not being able to is no reason to stop: they cannot be had again."""

        def renewed(now: VaultCredential, moment: Micros) -> VaultCredential:
            current = opened_parts(self._seal, now)
            # Somebody has replaced the refresh token meanwhile: what we have is of the one before.
            if current.refresh_token != used.refresh_token or not isinstance(now.auth, McpOAuth):
                return now
            new = replace(
                current,
                value=given.access or current.value,
                refresh_token=given.refresh or used.refresh_token,
            )
            auth = replace(now.auth, expires_at=given.expires_at) if given.access else now.auth
            is_lost = given.access is None
            return replace(
                now, auth=auth, sealed=sealed(self._seal, now, new), refresh_failed=is_lost
            )

        stored = await self._committed(credential, holder, renewed)
        if given.access is None:
            return Renewal(stored, answer)
        _log.info("a token was renewed", extra=_about(credential))
        return Renewal(stored)

    async def _failed(
        self, credential: VaultCredential, holder: str, used: CredentialSecrets, answer: HttpAnswer
    ) -> Renewal:
        """The token endpoint does not want it. Nobody tries again until the credential is changed."""

        def marked(now: VaultCredential, moment: Micros) -> VaultCredential:
            is_same = opened_parts(self._seal, now).refresh_token == used.refresh_token
            return replace(now, refresh_failed=True) if is_same else now

        stored = await self._committed(credential, holder, marked)
        if not stored.refresh_failed:  # somebody has replaced it meanwhile
            return Renewal(stored)
        _log.warning("a token cannot be renewed: %d", answer.status, extra=_about(credential))
        return Renewal(stored, answer)

    async def _committed(
        self, credential: VaultCredential, holder: str, change: Any
    ) -> VaultCredential:
        pause, give_up = 0.1, time.monotonic() + _COMMIT_WITHIN
        while True:
            try:
                return await self._credentials.change(credential, change, ends_lease=holder)
            except NotFound:
                raise  # deleted or archived meanwhile: nobody needs it any more
            except Exception:
                if time.monotonic() > give_up:
                    _log.exception("a renewed token is lost", extra=_about(credential))
                    raise
                _log.warning("a renewed token is not stored yet", extra=_about(credential))
            await anyio.sleep(pause)
            pause = min(5.0, 2 * pause)


def _is_final(answer: HttpAnswer) -> bool:
    """Whether the same request would get nothing else later. An answer of 2xx is: its refresh token may be used up."""
    if answer.status < 300:
        return True
    return 400 <= answer.status < 500 and _error_name(answer) in _FINAL


class _Tokens(msgspec.Struct, frozen=True):
    """What a token endpoint has given. `access` is None if no request can carry it."""

    access: str | None
    refresh: str | None
    expires_at: str | None

    def __repr__(self) -> str:
        return "_Tokens(…)"


def _tokens(answer: HttpAnswer) -> _Tokens | None:
    """The tokens in an answer; None if it has none."""
    if not 200 <= answer.status < 300:
        return None
    try:
        fields = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    access = fields.get("access_token") if isinstance(fields, dict) else None
    if not isinstance(access, str) or not access:
        return None
    refresh = fields.get("refresh_token")
    is_kept = isinstance(refresh, str) and 0 < len(refresh) <= LONGEST_SECRET
    is_bearer = str(fields.get("token_type", "bearer")).lower() == "bearer"
    can_be_sent = len(access) <= LONGEST_SECRET and all("!" <= letter <= "~" for letter in access)
    return _Tokens(
        access if is_bearer and can_be_sent else None,
        refresh if is_kept else None,
        _expiry(fields.get("expires_in")),
    )


def _expiry(seconds: object) -> str | None:
    """When a token expires that is given now; None if that is not said, or cannot be."""
    if isinstance(seconds, str) and seconds.isdigit():
        seconds = int(seconds[:12])
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    if not 0 < seconds < _LONGEST_LIFE:
        return None
    moment = datetime.now(UTC) + timedelta(seconds=int(seconds))
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _request(config: RefreshConfig, secrets: CredentialSecrets) -> tuple[dict[str, str], bytes]:
    """The request for new tokens (RFC 6749, 6; RFC 8707)."""
    form = {"grant_type": "refresh_token", "refresh_token": secrets.refresh_token or ""}
    headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
    match config.token_endpoint_auth.type:
        case "client_secret_basic":
            both = (config.client_id, secrets.client_secret or "")
            pair = ":".join(quote(each, safe="") for each in both)
            headers["authorization"] = "Basic " + b64encode(pair.encode()).decode()
        case "client_secret_post":
            form |= {"client_id": config.client_id, "client_secret": secrets.client_secret or ""}
        case "none":
            form["client_id"] = config.client_id
    also = {"resource": config.resource, "scope": config.scope}
    form |= {name: value for name, value in also.items() if value}
    return headers, urlencode(form).encode()


def _can_renew(credential: VaultCredential) -> bool:
    auth = credential.auth
    is_configured = isinstance(auth, McpOAuth) and auth.refresh is not None
    return is_configured and not credential.refresh_failed


def _is_due(credential: VaultCredential) -> bool:
    """Whether its token expires soon, and can be renewed: earlier the longer it lives, and never in the first half of
    its life: one that lives for a minute would be renewed with each request.
    """
    left = _left(credential)
    if left is None or not _can_renew(credential):
        return False
    lives = left + time.time() - credential.updated_at / _MICROS
    early = min(max(_EARLY_SECONDS, _EARLY_PART * lives), lives / 2)
    return left < max(early, _STILL_GOOD)


def _is_good(credential: VaultCredential) -> bool:
    """Whether its token can still be sent."""
    left = _left(credential)
    return left is None or left > _STILL_GOOD


def _left(credential: VaultCredential) -> float | None:
    """Seconds until its token expires; None if nobody knows."""
    auth = credential.auth
    if not isinstance(auth, McpOAuth) or auth.expires_at is None:
        return None
    return datetime.fromisoformat(auth.expires_at).timestamp() - time.time()


def _why(credential: VaultCredential, failure: HttpAnswer | NoAnswer) -> str:
    auth = credential.auth
    refresh = auth.refresh if isinstance(auth, McpOAuth) else None
    where = urlsplit(refresh.token_endpoint).netloc if refresh else "its server"
    said = failure.why if isinstance(failure, NoAnswer) else _said(failure)
    text = f"the access token of {credential.id} is not good any more, and {where} gives no new one: {said}"
    if credential.refresh_failed:
        text += (
            ". Update the credential with new tokens; if a server was stopped while it renewed this "
            "one, the new one may have been lost with it"
        )
    return text


def _said(answer: HttpAnswer) -> str:
    """The status and the error's name, if it is one: anything else in an answer is not repeated."""
    name = _error_name(answer)
    return f"{answer.status} {name}" if name else str(answer.status)


def _error_name(answer: HttpAnswer) -> str | None:
    """Such as `invalid_grant`; None: there is no word that can be one."""
    try:
        fields = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    word = fields.get("error") if isinstance(fields, dict) else None
    return word if isinstance(word, str) and _WORD.fullmatch(word) else None


def _about(credential: VaultCredential) -> Mapping[str, str]:
    return {"action": "refresh", "credential": credential.id}
