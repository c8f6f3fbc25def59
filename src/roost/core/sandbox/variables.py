"""The secrets of a session's vaults that are environment variables in its sandbox.

A program inside has a placeholder, which stays the same for as long as the session lives: through restarts, on
every node, and when the secret is replaced, as processes and files keep what they were once given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from roost.core.sandbox.reports import OnLack
from roost.core.vaults.secrets import VaultSecrets
from roost.domain.events import Draft
from roost.domain.session import Session
from roost.domain.vault import Auth, EnvironmentVariable, VaultCredential
from roost.errors import CannotUnseal, NotFound
from roost.ports.drafts import new_draft, trouble
from roost.ports.egress import OpenGrant, Substitution

MOST_VARIABLES: Final = 50
"""Of a session: each answer is searched for the secrets of all that it may be given."""


class SessionVariable(msgspec.Struct, frozen=True):
    """A credential of a session, and how its placeholder is replaced."""

    credential: VaultCredential
    substitution: Substitution


class SessionVariables:
    """Looks up the variables of sessions, each time a sandbox is opened."""

    def __init__(self, secrets: VaultSecrets) -> None:
        self._secrets = secrets

    async def of(self, session: Session, say: OnLack) -> list[SessionVariable]:
        """Those that its sandbox gets; `say` is told of what it has to do without."""
        if not session.spec.vault_ids:
            return []
        found = await self._secrets.variables(session)
        if session.spec.trust_level != "sandboxed":
            for each in found:
                why = "the session is not sandboxed, so no proxy could replace a placeholder"
                await say(_unreachable(each, why))
            return []
        for each in found[MOST_VARIABLES:]:
            await say(
                _unreachable(each, f"a sandbox has at most {MOST_VARIABLES} variables of vaults")
            )
        return [self._variable(session, each, say) for each in found[:MOST_VARIABLES]]

    def _variable(
        self, session: Session, credential: VaultCredential, say: OnLack
    ) -> SessionVariable:
        auth = credential.auth
        assert isinstance(auth, EnvironmentVariable)
        limited = auth.networking.type == "limited"
        substitution = Substitution(
            variable=auth.secret_name,
            placeholder=self._secrets.placeholder(session.id, auth.secret_name),
            secret=self._secret(credential, say),
            hosts=auth.networking.allowed_hosts or () if limited else None,
            header=auth.injection_location.header,
            body=auth.injection_location.body,
        )
        return SessionVariable(credential, substitution)

    def _secret(
        self, credential: VaultCredential, say: OnLack
    ) -> Callable[[], Awaitable[str | None]]:
        """Asked for each request. One that is archived, or was narrowed since, is not used in this sandbox."""
        checked, fits, was_said = credential.version, True, False

        async def say_once(lack: Draft) -> None:
            nonlocal was_said
            if not was_said:
                was_said = True
                await say(lack)

        async def secret() -> str | None:
            nonlocal checked, fits
            try:
                opened = await self._secrets.opened(credential.id)
                if opened.version != checked:
                    current = await self._secrets.found(credential.id)
                    checked, fits = opened.version, _allows(current.auth, credential.auth)
            except NotFound:
                return None
            except CannotUnseal as closed:
                await say_once(trouble("credential_unreadable", closed.message, "retrying"))
                return None
            if not fits:
                why = "its networking or injection_location was narrowed; it is used again in the session's next sandbox"
                await say_once(_unreachable(credential, why))
            return opened.value if fits else None

        return secret


def _allows(now: Auth, before: Auth) -> bool:
    """Whether a variable may still be used wherever it could be when its sandbox was opened."""
    if not isinstance(now, EnvironmentVariable) or not isinstance(before, EnvironmentVariable):
        return False
    was, place = before.networking, now.injection_location
    hosts = now.networking.type == "unrestricted" or (
        was.type == "limited"
        and set(was.allowed_hosts or ()) <= set(now.networking.allowed_hosts or ())
    )
    header = place.header or not before.injection_location.header
    return hosts and header and (place.body or not before.injection_location.body)


def lacks_of(variables: Sequence[SessionVariable], opened: OpenGrant) -> list[Draft]:
    """What a session's credentials cannot be used for, in its environment: said when its sandbox is opened."""
    found = []
    for each in variables:
        name = each.substitution.variable
        if name in opened.left_out:
            why = f"{name} has a meaning of its own in a sandbox, so it is not set; give it another name"
            found.append(_unreachable(each.credential, why))
        elif name in opened.unreachable:
            hosts = ", ".join(opened.unreachable[name])
            why = f"the environment's networking does not allow {hosts or 'any host'}"
            found.append(_unreachable(each.credential, why))
    return found


def _unreachable(credential: VaultCredential, why: str) -> Draft:
    error: dict[str, Any] = {
        "type": "credential_host_unreachable_error",
        "message": f"the credential {credential.id} cannot be used: {why}",
        "credential_id": credential.id,
        "vault_id": credential.vault_id,
        "retry_status": {"type": "retrying"},
    }
    return new_draft("session.error", error=error)
