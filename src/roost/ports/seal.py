"""Secrets that the database keeps, and that who reads the database cannot read."""

from __future__ import annotations

from typing import Protocol


class Seal(Protocol):
    """Closes and opens secrets with a key that is not in the database."""

    def seal(self, secret: str, about: str) -> str:
        """What is kept of a secret. It can be opened only as that which it is `about`, so that nobody can
        put it in another's place. Called before a secret is written.

        :raises CannotSeal: there is no key for it
        """
        ...

    def open(self, sealed: str, about: str) -> str:
        """The secret. Called when it is put on something that leaves the server.

        :raises CannotUnseal: it was sealed with another key, or about something else, or is damaged
        """
        ...

    @property
    def key(self) -> str | None:
        """The fingerprint of the key that seals now; None: there is none."""
        ...

    def key_of(self, sealed: str) -> str:
        """The fingerprint of the key that something was sealed with, whether or not it is here."""
        ...
