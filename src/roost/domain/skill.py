"""A skill: a directory of files with a `SKILL.md`, as somebody uploads it.

What is uploaded is not trusted: it is unpacked here, in memory and within bounds, and only plain files
with plain names come out. Who writes them to a disk need not look again.
"""

from __future__ import annotations

import lzma
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import accumulate
from typing import Any, Final

import msgspec

from roost.errors import InvalidRequest

MANIFEST: Final = "SKILL.md"
MOST_FILES: Final = 1000
MOST_BYTES: Final = 32 * 1024 * 1024
"""Of all files together, unpacked."""
MOST_VERSIONS: Final = 100

_DEEPEST = 16
_LONGEST_PATH = 512
_LONGEST_NAME = 255  # bytes, not characters: that is what disks count
_LARGEST_MANIFEST = 1024 * 1024
_LONGEST_HEAD = 16 * 1024
_DEEPEST_HEAD = 50  # brackets in brackets: the time that the parser takes grows with their square
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PART = re.compile(r"[^\x00-\x1f\x7f\\/]{1,255}")
_HEAD = re.compile(r"\A---\r?\n(.*?)\r?\n---\s*(\r?\n|\Z)", re.DOTALL)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNREADABLE = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(NotImplementedError, RuntimeError, EOFError, ValueError, OSError, IndexError),
)
"""How the library says that it cannot read an archive."""


class SkillFile(msgspec.Struct, frozen=True):
    """A file of a skill. `path` is relative to its directory."""

    path: str
    data: bytes
    executable: bool = False


class Bundle(msgspec.Struct, frozen=True):
    """A skill that can be kept: checked, and named by its manifest."""

    name: str
    description: str
    files: Sequence[SkillFile]


def bundled(uploads: Sequence[SkillFile]) -> Bundle:
    """What was uploaded: files below one directory, or one zip archive of them.

    :raises InvalidRequest: it is no skill, or not one that is safe to unpack
    """
    if len(uploads) == 1 and uploads[0].data.startswith(b"PK\x03\x04"):
        uploads = _unzipped(uploads[0].data)
    if len(uploads) == 1 and not uploads[0].path:  # the manifest alone, without a name
        uploads = [SkillFile(f"skill/{MANIFEST}", uploads[0].data)]
    _check_size(len(uploads), sum(len(file.data) for file in uploads))
    files, top = _below_one_directory(uploads)
    head = _head(next((file.data for file in files if file.path == MANIFEST), None))
    name = head.get("name") or top
    if not isinstance(name, str) or len(name) > 64 or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"files: {MANIFEST}: `name` must be at most 64 small letters, digits and single hyphens"
        )
    description = head.get("description")
    if not isinstance(description, str) or not 0 < len(description.strip()) <= 1024:
        raise InvalidRequest(f"files: {MANIFEST}: `description` must have 1 to 1024 characters")
    return Bundle(name, description.strip(), files)


def zipped(name: str, files: Iterable[SkillFile]) -> bytes:
    """The files as an archive with one directory in it; the same files make the same bytes."""
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            info = zipfile.ZipInfo(f"{name}/{file.path}", _EPOCH)
            mode = stat.S_IFREG | (0o755 if file.executable else 0o644)
            info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, file.data)
    return made.getvalue()


def _unzipped(data: bytes) -> list[SkillFile]:
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            _check_size(len(members), sum(member.file_size for member in members))
            return [_member(archive, member) for member in members]
    except _UNREADABLE:
        raise InvalidRequest("files: the archive is damaged, encrypted or of a rare kind") from None


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> SkillFile:
    mode = member.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise InvalidRequest(
            f"files: {member.filename[:200]!r} is not a plain file",
            hint="Links and devices cannot be part of a skill.",
        )
    with archive.open(member) as packed:
        # What an archive says about its sizes is only what it says.
        unpacked = packed.read(member.file_size + 1)
    if len(unpacked) > member.file_size:
        raise InvalidRequest("files: the archive is larger than it says")
    return SkillFile(member.filename, unpacked, bool(mode & 0o111))


def _check_size(files: int, size: int) -> None:
    if not 0 < files <= MOST_FILES:
        raise InvalidRequest(f"files: a skill has 1 to {MOST_FILES} files, this one {files}")
    if size > MOST_BYTES:
        raise InvalidRequest(f"files: a skill has at most {MOST_BYTES:,} bytes, unpacked")


def _below_one_directory(uploads: Sequence[SkillFile]) -> tuple[list[SkillFile], str]:
    """The files without the directory that all of them are in, and that directory's name."""
    split = [(_parts(file.path), file) for file in uploads]
    tops = {parts[0] for parts, _ in split}
    if len(tops) != 1 or any(len(parts) < 2 for parts, _ in split):
        raise InvalidRequest(
            "files: all files must be in one directory",
            hint=f"Upload them as `my-skill/{MANIFEST}`, `my-skill/…`.",
        )
    found = {"/".join(parts[1:]): file for parts, file in split}
    _check_tree(found, len(uploads))
    files = [SkillFile(path, file.data, file.executable) for path, file in sorted(found.items())]
    return files, tops.pop()


def _parts(path: str) -> list[str]:
    parts = path.split("/")
    plain = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    longest = max(len(part.encode(errors="replace")) for part in parts)
    plain = plain and longest <= _LONGEST_NAME
    if not plain or len(parts) > _DEEPEST or len(path.encode(errors="replace")) > _LONGEST_PATH:
        raise InvalidRequest(f"files: {path[:200]!r} is not a path that a skill may have")
    return parts


def _check_tree(found: Iterable[str], uploaded: int) -> None:
    paths = set(found)
    folders = {
        "/".join(path.split("/")[:n]) for path in paths for n in range(1, path.count("/") + 1)
    }
    if len(paths) != uploaded or paths & folders:
        raise InvalidRequest("files: two of them have the same path")


def _head(manifest: bytes | None) -> dict[str, Any]:
    """The fields between the lines of hyphens with which a manifest begins."""
    if manifest is None:
        raise InvalidRequest(f"files: there is no {MANIFEST} in the skill's directory")
    if len(manifest) > _LARGEST_MANIFEST:
        raise InvalidRequest(f"files: {MANIFEST} is larger than {_LARGEST_MANIFEST:,} bytes")
    import yaml  # with the first skill: a server that has none need not wait for it

    try:
        found = _HEAD.match(manifest.decode("utf-8-sig"))
        text = found[1] if found else ""
        # The plainest loader: only text, lists and maps; no tags, and no merging of maps, which grows.
        head = yaml.load(text, Loader=yaml.BaseLoader) if _can_be_read(text) else None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError):
        head = None
    if not isinstance(head, dict):
        raise InvalidRequest(
            f"files: {MANIFEST} must begin with its `name` and `description` in YAML",
            hint=f"Put them between two lines of `---`, in at most {_LONGEST_HEAD:,} characters.",
        )
    return head


def _can_be_read(head: str) -> bool:
    depths = accumulate((char in "[{") - (char in "]}") for char in head)
    return len(head) <= _LONGEST_HEAD and max(depths, default=0) <= _DEEPEST_HEAD


def skill_key(version_id: str) -> str:
    """Where the files of a version are in the blob store."""
    return f"skills/{version_id}"
