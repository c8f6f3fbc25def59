"""Secrets that are planted, and the search of everything for them."""

from __future__ import annotations

import io
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx2
import zstandard

from roost.api.framework.routes import Operation
from roost.api.operations import OPERATIONS
from tests.stores import holds

_LATER = {"DELETE": 2}  # what ends things comes last
_ENDING = re.compile(r"archive|revoke|drain|logout|rewind|delete")
_MARK = "planted-secret-"  # what all of them begin with
_PAGE = 4096
_PRESENT = re.compile(
    rb"[\x40-\xff]+"
)  # the highest byte of each page's entry: in memory, or swapped out
_LARGEST = 64 * 1024**2
_MACHINES = {"proc", "sys", "dev", "usr", "lib", "lib64", "bin", "sbin", "boot"}


class Planted:
    """Secrets that can be told from anything else, and what was answered since."""

    def __init__(self) -> None:
        self.secrets: list[str] = []
        self.answers: list[tuple[str, bytes]] = []
        self._forms: dict[str, list[bytes]] = {}

    def new(self) -> str:
        """One with characters that are written differently in URLs, JSON and base64."""
        secret = f"{_MARK}{token_hex(16)}+/="
        self.secrets.append(secret)
        self._forms[secret] = forms(secret)
        return secret

    def found_in(self, data: bytes) -> list[str]:
        if not any(mark in data for mark in _MARKS):  # gigabytes are looked through
            return []
        return [each for each, forms in self._forms.items() if any(form in data for form in forms)]


def forms(secret: str) -> list[bytes]:
    """How a secret may be written somewhere, by the part of it that looks the same in URLs and JSON; of base64,
    what it is in the middle of something else, too.
    """
    raw = secret.removesuffix("+/=").encode()
    coded = [b64encode(before + raw)[4:-4] for before in (b"", b"x", b"xx")]
    return [
        raw,
        raw.hex().encode(),
        raw.hex().upper().encode(),
        raw.decode().encode("utf-16-le"),
        *coded,
    ]


_MARKS = forms(_MARK)


def memory_of(pid: int) -> Iterator[bytes]:
    """What is in a process's memory, without the pages of files that nobody has written to."""
    own = Path(f"/proc/{pid}")
    with (own / "mem").open("rb", 0) as memory, (own / "pagemap").open("rb", 0) as pages:
        for line in (own / "maps").read_text().splitlines():
            span, may, _, _, inode, *name = line.split(maxsplit=5)
            if ("w" not in may and inode != "0") or name in (["[vvar]"], ["[vsyscall]"]):
                continue
            start, end = (int(each, 16) for each in span.split("-"))
            for at in range(start, end, _LARGEST):
                pages.seek(at // _PAGE * 8)
                flags = pages.read(min(_LARGEST, end - at) // _PAGE * 8)[7::8]
                for there in _PRESENT.finditer(flags):
                    memory.seek(at + there.start() * _PAGE)
                    yield _read(memory, (there.end() - there.start()) * _PAGE)


def _read(memory: io.FileIO, size: int) -> bytes:
    try:
        return memory.read(size)
    except OSError:  # it was given back, or is a device's
        return b""


def files_seen_by(pid: int) -> Iterator[tuple[str, bytes]]:
    """The files that a process can see, without those of the machine that every program has."""
    root = Path(f"/proc/{pid}/root")
    for top in root.iterdir():
        if top.name in _MACHINES or top.is_symlink():
            continue
        for path in [top, *top.rglob("*")]:
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= _LARGEST:
                yield str(path).removeprefix(str(root)), path.read_bytes()


class Walk:
    """A client that keeps every answer."""

    def __init__(self, client: httpx2.Client, plant: Planted) -> None:
        self._client = client
        self._plant = plant

    def ask(self, method: str, path: str, **more: Any) -> httpx2.Response:
        with self._client.stream(method, path, **more) as response:
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                content = next(response.iter_bytes(), b"")
            else:
                content = response.read()
        head = repr(response.headers.multi_items()).encode()
        self._plant.answers += [(f"{method} {path}", content), (f"{method} {path}", head)]
        return response

    def post(self, path: str, **body: Any) -> Any:
        answer = self.ask("POST", path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


def order(operation: Operation) -> int:
    return 1 if _ENDING.search(operation.name) else _LATER.get(operation.method, 0)


def search_files(plant: Planted, data: Path) -> dict[Path, bytes]:
    """The database and its log, blobs, and what the server has written to its own log."""
    files = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    for path, content in files.items():
        assert plant.found_in(content) == [], path
    return files


def search_database(data: Path) -> None:
    """The tables of one that is no file: by what all secrets begin with, as each search takes seconds."""
    for mark in dict.fromkeys(each.replace(b"\0", b"").decode() for each in _MARKS):
        assert not holds(data, mark), mark


def walk_all(walk: Walk, plant: Planted, ids: dict[str, str]) -> None:
    """Every operation, with the ids of what is there."""
    for operation in sorted(OPERATIONS, key=order):
        path = operation.path.format_map(_Ids(ids))
        body = {} if operation.method == "GET" else {"json": {}}
        walk.ask(operation.method, path, **body)
        if operation.name == "roost.sessions.export":
            plant.answers.append(("export", _unpacked(plant.answers[-2][1])))


class _Ids(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "none"


def _unpacked(archive: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(archive)).read()
