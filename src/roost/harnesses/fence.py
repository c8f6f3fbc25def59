"""Keeps the tools of an agent in a directory, where no wall does: by looking at what they are given.

A path is judged by where it leads, with every symbolic link followed; one that does not exist yet by
where it would be made. The tool is then given the place that was judged, not the words that led there:
so a link changed in between is not followed, unless a directory on the way itself is exchanged. Whoever
can do that is on the host already.
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
    """A path leads where it must not; says so to the agent."""


class Fence:
    """`bounds`, in force."""

    def __init__(self, bounds: Confinement) -> None:
        self._root = os.path.realpath(bounds.root)
        self._home = str(bounds.home)
        self._hidden = [os.path.realpath(path) for path in bounds.hidden]

    def place(self, path: object) -> str:
        """Where a path leads. :raises Outside: it may not be used"""
        if not isinstance(path, str) or not path or "\0" in path:
            raise ToolRefused("Refused: that is not a path.")
        for reading in self._readings(path):
            self._check(os.path.realpath(reading), path)
        return os.path.realpath(os.path.normpath(self._absolute(path)))

    def pattern(self, pattern: object) -> str:
        """A pattern for files, to be looked for below some place that is allowed.

        :raises Outside: it names another place, or leads up
        """
        if not isinstance(pattern, str) or ".." in pattern or pattern.startswith("~"):
            raise ToolRefused(
                "Refused: give a pattern that neither begins with ~ nor has .. in it."
            )
        if pattern.startswith("/"):
            self.place(_WILD.split(pattern)[0].rpartition("/")[0] or "/")
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
