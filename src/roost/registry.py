"""Backends by name: those that Roost ships, and those that other packages bring.

A registry knows where each factory is, as `module:attribute`, and imports it when it is asked for: so
nobody pays for a backend that is not used, and one that cannot be imported is an error of its own. A
package adds a backend by an entry point in the registry's group:

    [project.entry-points."roost.harnesses"]
    parrot = "parrot.harness:make"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar, cast

from roost.errors import StartupError

T = TypeVar("T")


class Registry(Generic[T]):
    """Factories of one kind of backend. `what` is what messages call one of them.

    A name that Roost ships always means what Roost ships: no package can put itself in its place.
    """

    def __init__(self, what: str, group: str, shipped: Mapping[str, str]) -> None:
        self._what = what
        self._group = group
        self._shipped = shipped

    def __iter__(self) -> Iterator[str]:
        """The names, those that are shipped first."""
        return iter(self._places())

    def __contains__(self, name: object) -> bool:
        return name in self._places()

    def check(self, name: str, setting: str) -> None:
        """Refuse a setting that names something nobody has registered.

        :raises StartupError: nothing has the name that this setting has
        """
        if name not in self:
            raise StartupError(
                f"{setting}: there is no {self._what} {name!r}",
                hint=f"There is: {', '.join(self)}.",
            )

    def load(self, name: str) -> T:
        """The factory of that name. :raises StartupError: there is none, or it cannot be imported"""
        self.check(name, self._what)
        place = self._places()[name]
        module, _, attribute = place.partition(":")
        try:
            return cast(T, getattr(import_module(module), attribute))
        except (ImportError, AttributeError) as error:
            raise StartupError(
                f"the {self._what} {name!r} cannot be imported from {place}: {error}",
                hint="Install its package again, or remove it.",
            ) from error

    def _places(self) -> dict[str, str]:
        """Looked up each time: a package may be installed while a program runs, as in tests."""
        others = {entry.name: entry.value for entry in entry_points(group=self._group)}
        return {**self._shipped, **{n: at for n, at in others.items() if n not in self._shipped}}
