"""Which sandboxes may be left in a pool: a file for each, written before it is opened and removed once its files are back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from roost import disk
from roost.sandboxes import sandbox_names


class Loss(NamedTuple):
    """Whether files may be lost with the last sandbox, and whether some were before, which the agent does not know."""

    is_last: bool
    is_earlier: bool

    def __bool__(self) -> bool:
        return self.is_last or self.is_earlier


class Notes:
    """The notes of the servers that share a directory. All of it blocks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def opened(self, identifier: str, name: str) -> Loss:
        """Note that a sandbox is open; what is lost with the one before, unless that is still there. :raises OSError:

        What that one may have is noted until it is known to be fetched or lost: whoever comes next asks it again.
        """
        disk.make_folder(self._directory, 0o700)
        before = self._read(identifier)
        loss = Loss(False, False) if before is None else Loss(_is_changed(before), _is_lost(before))
        self.write(identifier, name, is_changed=loss.is_last, is_lost=loss.is_earlier)
        return loss

    def write(self, identifier: str, name: str, *, is_changed: bool, is_lost: bool = False) -> None:
        """Note whether it may have files that are nowhere else, and whether some were lost before, which the session's
        agent does not know. It is on disk then, as the log is. :raises OSError:
        """
        note = {"name": name, "is_changed": is_changed, "is_lost": is_lost}
        disk.write_whole(self._directory / identifier, json.dumps(note).encode())

    def mark(
        self, identifier: str, name: str, *, is_changed: bool, is_lost: bool | None = None
    ) -> None:
        """Note whether it has such files, unless the note is a newer one's by now. `is_lost` None: as it was noted.

        :raises OSError:
        """
        before = self._of(identifier, name)
        if before is not None:
            was_lost = _is_lost(before) if is_lost is None else is_lost
            self.write(identifier, name, is_changed=is_changed, is_lost=was_lost)

    def _of(self, identifier: str, name: str) -> dict[str, Any] | None:
        """What is noted of this one; None: it is a newer one's."""
        before = self._read(identifier) or {}
        return before if before.get("name", name) == name else None

    def ended(self, identifier: str) -> None:
        """It was ended, and what it had is lost: it need not be looked for again. :raises OSError:"""
        before = self._read(identifier)
        if before is not None:
            self.write(
                identifier, "", is_changed=False, is_lost=_is_changed(before) or _is_lost(before)
            )

    def _read(self, identifier: str) -> dict[str, Any] | None:
        """What is noted; what cannot be read may be anything."""
        try:
            found = json.loads((self._directory / identifier).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def remove(self, identifier: str, name: str) -> None:
        """The one of this name is closed, and its files are back. What is noted of a newer one stays, and that files
        were lost before, until the agent knows. :raises OSError:
        """
        before = self._of(identifier, name)
        if before is None:
            return
        if _is_lost(before):
            self.write(identifier, "", is_changed=False, is_lost=True)
        else:
            (self._directory / identifier).unlink(missing_ok=True)

    def orphaned(self) -> Iterator[tuple[str, int, bool]]:
        """The identifiers of those whose server is dead, its lease's generation, and whether they may have files."""
        for path in self._directory.glob("roost-*"):
            noted = self._read(path.name) or {}
            name = sandbox_names.read(str(noted.get("name")))
            if name is not None and name.orphaned:
                yield path.name, name.generation, _is_changed(noted)


def _is_changed(noted: dict[str, Any]) -> bool:
    """What cannot be read may have said so."""
    return noted.get("is_changed") is not False


def _is_lost(noted: dict[str, Any]) -> bool:
    return noted.get("is_lost") is True
