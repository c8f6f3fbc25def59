"""Files that come as `multipart/form-data`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from roost.api.call import Call
from roost.domain.skill import MOST_FILES, File
from roost.errors import InvalidRequest

_FILES: Final = ("files", "files[]")
_MOST_FIELDS = 10
_LONGEST_FIELD = 4096


@dataclass
class Form:
    """What was sent: files under the names their clients gave them, and plain fields."""

    files: list[File] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)


async def form_of(call: Call, *known: str) -> Form:
    """The form in a request, with files and the fields that are known.

    :raises InvalidRequest: it is no form, or has fields that nobody knows
    """
    kind = call.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise InvalidRequest("content-type: send multipart/form-data with `files[]`")
    parser = MultiPartParser(
        Headers({"content-type": kind}),
        _stream(call.raw),
        max_files=MOST_FILES,
        max_fields=_MOST_FIELDS,
        max_part_size=_LONGEST_FIELD,
    )
    try:
        sent = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise InvalidRequest(f"the form cannot be read: {str(error)[:200]}") from None
    form = Form()
    try:
        for name, value in sent.multi_items():
            await _take(form, name, value, known)
    finally:
        await sent.close()
    return form


async def _take(form: Form, name: str, value: UploadFile | str, known: tuple[str, ...]) -> None:
    if isinstance(value, UploadFile) and name in _FILES:
        form.files.append(File(value.filename or "", await value.read()))
    elif isinstance(value, str) and name in known and name not in form.fields:
        form.fields[name] = value
    else:
        raise InvalidRequest(f"{name[:80]}: unknown, repeated, or not a file")


async def _stream(raw: bytes) -> AsyncGenerator[bytes, None]:
    yield raw
