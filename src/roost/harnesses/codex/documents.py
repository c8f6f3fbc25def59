"""Documents in what an agent is told. Codex has no way to show one to its model, so a PDF becomes a file.

The file is in the session's home, where Codex keeps what is its own, and its name has the hash of its content: it is
the same whenever the conversation is told again, and to write it twice changes nothing. The agent is told where it is,
and reads it by commands. Documents of text are told in words (`history.content_of`).
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from roost.domain.events import Entry
from roost.errors import SandboxFailed
from roost.harnesses.content import text_block
from roost.harnesses.json_lines import Json
from roost.ports.sandbox import Sandbox

DIRECTORY: Final = "documents"
"""Where they are, in Codex's own directory."""
_PUT: Final = f"""
mkdir -p "$CODEX_HOME/{DIRECTORY}" && cd "$CODEX_HOME/{DIRECTORY}" && cat > "$0.part" && mv "$0.part" "$0" && pwd
"""
_LONGEST_NAME: Final = 80
_PART: Final = 1024 * 1024


class CodexDocuments:
    """The documents of one conversation. `readable`: its agent has commands to read them with."""

    def __init__(self, sandbox: Sandbox, environ: Mapping[str, str], *, readable: bool) -> None:
        self._sandbox = sandbox
        self._environ = environ
        self._readable = readable
        self._placed: dict[str, str] = {}

    async def placed(self, entry: Entry) -> Entry:
        """The entry with words about a file in place of each document that was put into one."""
        if b'"document"' not in entry.body:
            return entry
        fields = entry.fields
        blocks = fields.get("content")
        if not isinstance(blocks, list):
            return entry
        fields["content"] = [await self._block(block) for block in blocks]
        return replace(entry, body=msgspec.json.encode(fields))

    async def _block(self, block: Json) -> Json:
        source = block.get("source")
        if block.get("type") != "document" or not isinstance(source, dict):
            return block
        title = str(block.get("title") or "document")
        if source.get("type") == "url":
            return text_block(f"[{title}: the document is at {source.get('url')}]")
        if source.get("type") != "base64" or not self._readable:
            return block
        try:
            data = b64decode(source["data"], validate=True)
        except binascii.Error:
            return block
        path = await self._put(_name(title, data), data)
        where = f"it is in the file {path}" if path else "it could not be written to a file"
        return text_block(f"[{title} ({source['media_type']}, {len(data):,} bytes): {where}]")

    async def _put(self, name: str, data: bytes) -> str:
        """Write a file, unless it was; its path, or nothing if that is not possible there."""
        if name not in self._placed:
            process = await self._sandbox.spawn(["sh", "-c", _PUT, name], environ=self._environ)
            with suppress(SandboxFailed):  # it ends early if it cannot write, and its code says so
                for at in range(0, len(data), _PART):
                    await process.send(data[at : at + _PART])
                await process.close_input()
            printed = b""
            while part := await process.receive():
                printed += part
            if await process.wait() != 0:
                return ""
            self._placed[name] = f"{printed.decode(errors='replace').strip()}/{name}"
        return self._placed[name]


def _name(title: str, data: bytes) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", title)[:_LONGEST_NAME].removesuffix(".pdf")
    return f"{hashlib.sha256(data).hexdigest()[:16]}-{plain}.pdf"
