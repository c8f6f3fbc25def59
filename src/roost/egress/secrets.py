"""Takes a secret out of what is passed on."""

from __future__ import annotations

_SHORTEST = 16
"""A shorter key is a stand-in (`none`, `ollama`), and a word that answers may well have in them."""


class Redactor:
    """Replaces a secret by as many asterisks, in a stream that must not be held up.

    A model's server does not send our key back; a gateway that quotes the request in an error does.
    Lengths stay as they are, so a Content-Length stays true. Only bytes that could be the beginning
    of the secret wait for what comes after them.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret if len(secret) >= _SHORTEST else b""
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """A complete piece without the secret."""
        return data.replace(self._secret, b"*" * len(self._secret)) if self._secret else data

    def feed(self, data: bytes) -> bytes:
        """As much of the stream as can be passed on now."""
        if not self._secret:
            return data
        clean = self.whole(self._held + data)
        keep = self._beginning(clean)
        self._held = clean[len(clean) - keep :]
        return clean[: len(clean) - keep]

    def flush(self) -> bytes:
        """The rest, at the end of the stream."""
        rest, self._held = self._held, b""
        return rest

    def _beginning(self, data: bytes) -> int:
        """How many bytes at the end could be the beginning of the secret."""
        start = max(0, len(data) - len(self._secret) + 1)
        while (start := data.find(self._secret[:1], start)) >= 0:
            if self._secret.startswith(data[start:]):
                return len(data) - start
            start += 1
        return 0
