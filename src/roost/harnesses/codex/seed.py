"""What every Codex begins with, made once on a machine.

Codex makes itself a handful of databases where it finds none, in some sixty steps: that takes longer than the rest of
its start. Another start of it says which models it knows. Neither differs between sessions nor has anything of one. So
both are made once, by the program itself in an empty directory, and shown to sandboxes, where each Codex copies the
databases and reads the catalog. A sandbox that has them not, because they are not made yet, makes its own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from roost.disk import make_folder, remove, sync_folder

CATALOG: Final = "models.json"
_log = logging.getLogger(__name__)
_WITHIN: Final = 60.0  # seconds
_MAKING: Final = "making-"
_HELLO: Final = (
    b'{"id":1,"method":"initialize","params":{"clientInfo":{"name":"roost","version":"1"}}}\n'
)
# It is told nothing but hello, and ends with its input; its databases are there before it answers.
_MAKE: Final = """
"$0" debug models --bundled | sed -E "$1" >"$2" && exec "$0" app-server -c "sqlite_home=\\"$PWD\\"" \\
    -c analytics.enabled=false -c features.apps=false -c features.plugins=false
"""


class _Catalog(msgspec.Struct):
    models: list[msgspec.Raw]


class CodexSeed:
    """A seed in a directory below `folder`, whose name follows from what it is made of; `edits` are those of the
    catalog, for `sed`.
    """

    def __init__(self, version: str, edits: str, folder: Path) -> None:
        self._edits = edits
        self._tried = False
        name = hashlib.blake2b(f"{version}\0{edits}\0{_MAKE}".encode(), digest_size=8).hexdigest()
        self.path: Final = folder.absolute() / name

    def make(self, program: Path) -> None:
        """Make it, if it is not there, by the program in this directory: one try, as agents start without it, too."""
        if self._tried or self.path.is_dir():
            return
        self._tried = True
        try:
            make_folder(self.path.parent)
            self._sweep()
            with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=_MAKING) as home:
                self._run(program, Path(home))
                self._take(Path(home))
        except (OSError, subprocess.SubprocessError, sqlite3.Error, ValueError) as error:
            _log.warning("no seed for Codex: %s", error)

    def _sweep(self) -> None:
        """What was killed while it was made; another server may be making one now."""
        for left in self.path.parent.glob(f"{_MAKING}*"):
            if left.stat().st_mtime < time.time() - 2 * _WITHIN:
                remove(left)

    def _run(self, program: Path, home: Path) -> None:
        subprocess.run(
            ["sh", "-c", _MAKE, str(program / "bin" / "codex"), self._edits, CATALOG],
            cwd=home,
            env={"PATH": os.defpath, "HOME": str(home), "CODEX_HOME": str(home)},
            input=_HELLO,
            capture_output=True,
            timeout=_WITHIN,
            check=True,
        )

    def _take(self, home: Path) -> None:
        """Its databases and its catalog, readable for everybody; the name is given when all of it is on the disk."""
        if not msgspec.json.decode((home / CATALOG).read_bytes(), type=_Catalog).models:
            raise ValueError("it knows no models")
        databases = [*home.glob("*.sqlite")]
        for path in databases:  # which it may have left before it wrote all of them down
            with closing(sqlite3.connect(path)) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                if database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                    raise ValueError(f"its {path.name} is empty")
        if not databases:
            raise ValueError("it makes no databases")
        made = home / "seed"
        made.mkdir()
        for path in [home / CATALOG, *databases]:
            with path.open("rb") as source, (made / path.name).open("wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
            (made / path.name).chmod(0o644)
        made.chmod(0o755)
        sync_folder(made)
        made.rename(self.path)
