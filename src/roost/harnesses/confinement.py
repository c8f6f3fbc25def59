"""Keeps the tools of an agent in a directory where no sandbox does, by checking the paths they are given.

A path is judged by where it leads, with every symbolic link followed; one that does not exist yet by
where it would be created. The tool is then given the path that was judged, not the one it was called
with: so a link changed in between is not followed, unless a directory on the way itself is exchanged.
Whoever can do that is on the host already.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from roost.ports.harness import Confinement

_WILD: Final = re.compile(r"[*?\[{]")


class ToolRefused(Exception):
    """A tool may not be used with this input; the message says why, to the agent."""


class PathConfinement:
    """Checks paths against a confinement."""

    def __init__(self, confinement: Confinement) -> None:
        self._root = os.path.realpath(confinement.root)
        self._home = str(confinement.home)
        self._hidden = [os.path.realpath(path) for path in confinement.hidden]

    def resolve(self, path: object) -> str:
        """The absolute path that a path leads to. :raises ToolRefused: it may not be used"""
        if not isinstance(path, str) or not path or "\0" in path:
            raise ToolRefused("Refused: that is not a path.")
        for reading in self._readings(path):
            self._check(os.path.realpath(reading), path)
        return os.path.realpath(os.path.normpath(self._absolute(path)))

    def pattern(self, pattern: object) -> str:
        """A pattern for files, to be looked for below a directory that is allowed.

        :raises ToolRefused: it names another directory, or leads up
        """
        if not isinstance(pattern, str) or ".." in pattern or pattern.startswith("~"):
            raise ToolRefused(
                "Refused: give a pattern that neither begins with ~ nor has .. in it."
            )
        if pattern.startswith("/"):
            self.resolve(_WILD.split(pattern)[0].rpartition("/")[0] or "/")
        return pattern

    def _readings(self, path: str) -> Iterator[str]:
        """A program may tidy a path up before it opens it: no way to read it may lead out."""
        for written in {path, path.strip(), unicodedata.normalize("NFC", path)}:
            absolute = self._absolute(written)
            yield absolute
            yield os.path.normpath(absolute)  # `link/..` is not where the link's target lies

    def _absolute(self, path: str) -> str:
        if path == "~" or path.startswith("~/"):
            path = self._home + path[1:]
        return str(Path(self._root, path))

    def _check(self, place: str, said: str) -> None:
        if not _is_within(place, self._root):
            raise ToolRefused(
                f"Refused: {said} is outside of {self._root}, which this session is kept in."
            )
        if any(_is_within(place, hidden) for hidden in self._hidden):
            raise ToolRefused(
                f"Refused: {said} is where sessions are kept, and not for this one to use."
            )


def _is_within(place: str, folder: str) -> bool:
    return Path(place).is_relative_to(folder)
