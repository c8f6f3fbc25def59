"""The rules: what a key may see, change and ask for, decided without looking anything up.

`docs/trust.md` has the rules as tables, and `tests/api/test_access.py` holds every operation to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roost.domain import workspace
from roost.domain.environment import defaults_of
from roost.domain.session import Session, TrustLevel, reaches
from roost.domain.workspace import Access
from roost.errors import AuthorNotTrusted, Forbidden, NotTheOwner
from roost.ports.catalog import Record
from roost.ports.keys import Key


def owns(caller: Key, created_by: str) -> bool:
    """Whether it is the caller's own."""
    return created_by == caller.principal


def may_see(caller: Key, created_by: str) -> bool:
    """Whether the caller is shown what somebody of its tenant has made, unless a workspace decides it."""
    return caller.role == "admin" or caller.sees == "tenant" or owns(caller, created_by)


def check_owner(caller: Key, record: Record) -> None:
    """Whether the caller may change a record or remove it.

    What was made before owners were noted is for everybody who sees the tenant, as it was.

    :raises NotTheOwner:
    """
    before_owners = not record.created_by and caller.sees == "tenant"
    if caller.role != "admin" and not before_owners and not owns(caller, record.created_by):
        raise NotTheOwner(f"the {record.kind} {record.id} was made by another key")


def may_use(caller: Key, record: Record, access: Access) -> bool:
    """Whether the caller may do that with a workspace of its tenant."""
    administrator = caller.role == "admin"
    return workspace.may(record.body, caller.principal, access, administrator=administrator)


def may_ask_for(key: Key, level: TrustLevel) -> bool:
    """Whether a key reaches a trust level."""
    return reaches(key.trust_ceiling, level)


def check_defaults(key: Key, environment: Mapping[str, Any]) -> None:
    """What an environment gives to sessions is asked for by whoever writes it there.

    :raises Forbidden: it is more than the key may ask for
    """
    for name, value in defaults_of(environment).items():
        if name != "mount_scope" and value in ("vault", "full") and not may_ask_for(key, value):
            raise Forbidden(
                f"metadata.roost.{name}: this key may ask for {key.trust_ceiling!r} at most"
            )


def check_author(record: Record, level: TrustLevel, field: str) -> None:
    """Nobody gives a session's agent orders who could not have made the session.

    What was written before ceilings were noted counts as written by an administrator.

    :raises AuthorNotTrusted: the key that wrote it does not reach the session's level
    """
    if record.ceiling is not None and not reaches(record.ceiling, level):
        raise AuthorNotTrusted(
            f"{field}: the {record.kind} {record.id} (version {record.version}) was written by a key that "
            f"reaches {record.ceiling!r} only, and the session is to have {level!r}"
        )


def check_reach(key: Key, session: Session) -> None:
    """Whoever tells a session what to do acts with its trust, whoever made it.

    :raises Forbidden: the session has more than the key may ask for
    """
    level = session.spec.trust_level
    if not may_ask_for(key, level):
        raise Forbidden(
            f"the session's trust level is {level!r}; this key reaches {key.trust_ceiling!r} only",
            hint="Use a key with a higher trust ceiling, or a session of your own.",
        )
