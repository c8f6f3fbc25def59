from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from tests.docs.reading import text
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from roost.cli.main import app


def _commands(command: object, path: str) -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            if not below.hidden:  # another name of a group that is shown
                yield from _commands(below, f"{path} {name}")
    else:
        assert isinstance(command, TyperCommand)
        yield path, command


COMMANDS = dict(_commands(typer.main.get_command(app), "roost"))


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_flag_is_documented(path: str) -> None:
    command = COMMANDS[path]
    section = text("docs/cli.md").partition(f"\n## `{path}`\n")[2].partition("\n## ")[0]
    assert section, f"docs/cli.md has no section for `{path}`"
    assert (command.help or "") in section
    for option in command.params:
        if isinstance(option, TyperOption):
            assert f"| `{', '.join(option.opts)}` | {option.help} |" in section
        else:
            assert isinstance(option, TyperArgument)
            assert f"| `{option.metavar or str(option.name).upper()}` | {option.help} |" in section


def test_no_command_is_documented_that_does_not_exist() -> None:
    told = [line[4:-1] for line in text("docs/cli.md").splitlines() if line.startswith("## `")]
    assert sorted(told) == sorted(COMMANDS)
