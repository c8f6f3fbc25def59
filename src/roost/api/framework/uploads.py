"""Files that come as `multipart/form-data`.

A form is taken apart as it arrives: what is large goes to a temporary file, not to memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from roost.api.framework.call import ApiCall
from roost.domain.skill import MOST_FILES, SkillFile
from roost.errors import InvalidRequest

_SKILL: Final = ("files", "files[]")
_MOST_FIELDS = 10
_LONGEST_FIELD = 4096
_SPOOLED = 64 * 1024  # bytes of a file that are in memory; what is more is in a temporary file


@dataclass
class UploadedForm:
    """What was sent: files under the names their clients gave them, and plain fields."""

    files: list[SkillFile] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)


@dataclass
class UploadedParts:
    """What was sent, still in its temporary files: valid until the form is closed."""

    files: list[UploadFile] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)


async def form_of(call: ApiCall, *known: str) -> UploadedForm:
    """The form in a request, with files and the fields that are known.

    :raises InvalidRequest: it is no form, or has fields that nobody knows
    :raises TooLarge: it is over the limit for bodies
    """
    limit = call.deps.settings.max_body_bytes
    async with parts_of(call, _SKILL, known, most_bytes=limit) as parts:
        files = [SkillFile(file.filename or "", await file.read()) for file in parts.files]
        return UploadedForm(files, parts.fields)


@asynccontextmanager
async def parts_of(
    call: ApiCall,
    names: Sequence[str],
    known: Sequence[str],
    *,
    most_bytes: int,
    most_files: int = MOST_FILES,
) -> AsyncGenerator[UploadedParts, None]:
    """The parts of a form: files under these names, and the fields that are known.

    :raises InvalidRequest: it is no form, or has fields that nobody knows
    :raises TooLarge: it is over the limit
    """
    kind = call.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise InvalidRequest(f"content-type: send multipart/form-data with `{names[-1]}`")
    parser = _Parser(
        names,
        Headers({"content-type": kind}),
        call.chunks(most_bytes),
        max_files=most_files,
        max_fields=_MOST_FIELDS,
        max_part_size=_LONGEST_FIELD,
    )
    if most_bytes > call.deps.settings.max_body_bytes:
        parser.spool_max_size = _SPOOLED  # 200 files may come at once
    try:
        sent = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise InvalidRequest(f"the form cannot be read: {str(error)[:200]}") from None
    try:
        yield _sorted(sent, names, known)
    finally:
        await sent.close()


class _Parser(MultiPartParser):
    """Recognises a file by the name of its part, too: clients that are given bytes alone send no filename."""

    def __init__(self, files: Sequence[str], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._named = {name.encode() for name in files}

    def on_headers_finished(self) -> None:
        """Give a part that is a file by its name an empty filename, so that it is taken for one."""
        part = self._current_part
        _, options = parse_options_header(part.content_disposition)
        if options.get(b"name") in self._named and b"filename" not in options:
            part.content_disposition = (part.content_disposition or b"") + b'; filename=""'
        super().on_headers_finished()


def _sorted(sent: FormData, names: Sequence[str], known: Sequence[str]) -> UploadedParts:
    parts = UploadedParts()
    for name, value in sent.multi_items():
        if isinstance(value, UploadFile) and name in names:
            parts.files.append(value)
        elif isinstance(value, str) and name in known and name not in parts.fields:
            parts.fields[name] = value
        else:
            raise InvalidRequest(f"{name[:80]}: unknown, repeated, or not a file")
        if "\0" in (value if isinstance(value, str) else value.filename or ""):
            raise InvalidRequest(f"{name[:80]}: must not contain NUL characters")
    return parts
