"""`roost sessions export` and `import`, and files that are downloaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from roost.cli.claude_code import packed
from roost.cli.client import ApiClient, at
from roost.cli.table import print_json
from roost.errors import InvalidRequest


def export_session(client: ApiClient, session_id: str, output: Path, place: str | None) -> None:
    """A session as one file; whole, or not there."""
    params = {} if place is None else {"at": place}
    downloaded(client, at("roost", "v1", "sessions", session_id, "export"), params, output)


def downloaded(client: ApiClient, path: str, params: Mapping[str, str], output: Path) -> None:
    """What is at a path as one file, whose name is printed; whole, or not there."""
    if output.exists():
        raise InvalidRequest(f"there is a file {output} already", hint="Name another with -o.")
    part = output.with_name(f".{output.name}.part")
    try:
        with part.open("wb") as out:
            for piece in client.download(path, params):
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        part.rename(output)
    finally:
        part.unlink(missing_ok=True)
    print(output)


def import_session(
    client: ApiClient,
    source: Path,
    asked: Mapping[str, str | None],
    workdir: Path | None,
    *,
    as_json: bool,
) -> None:
    """A session, made of a file."""
    if not source.is_file():
        raise InvalidRequest(f"there is no file {source}")
    if source.suffix == ".jsonl":
        with packed(source, workdir) as archive:
            _send(client, archive, asked, as_json=as_json)
        return
    with source.open("rb") as archive:
        _send(client, archive, asked, as_json=as_json)


def _send(
    client: ApiClient, archive: BinaryIO, asked: Mapping[str, str | None], *, as_json: bool
) -> None:
    fields = {name: value for name, value in asked.items() if value is not None}
    session = client.upload(at("roost", "v1", "sessions", "import"), "archive", archive, fields)
    if as_json:
        print_json(session)
    else:
        print(f"{session['id']}\ntalk to it:  roost chat --session {session['id']}")
