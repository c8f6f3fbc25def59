"""Paths that lead out of the directory an agent is kept in, however they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harnesses.claude_session import agent

from roost.harnesses.confinement import PathConfinement, ToolRefused
from roost.harnesses.permissions import Policy, Tool
from roost.ports.harness import Confinement


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """A vault with links, beside a secret, and with another session's files in it."""
    vault = tmp_path / "vault"
    for folder in ("notes", ".workspaces/own", ".workspaces/other"):
        (vault / folder).mkdir(parents=True)
    (vault / "notes" / "note.txt").write_text("note")
    (vault / ".workspaces" / "other" / "x.txt").write_text("theirs")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (vault / "to-outside").symlink_to(outside)
    (vault / "to-secret").symlink_to("../outside/secret.txt")
    (vault / "to-nothing").symlink_to(outside / "not-there-yet")
    (vault / "to-link").symlink_to("to-outside")
    (vault / "to-notes").symlink_to("notes")
    (vault / "to-other").symlink_to(".workspaces/other")
    (vault / "notes" / "caf\u00e9").symlink_to(outside)
    (tmp_path / "vault-of-another").mkdir()
    return vault


def bounds(vault: Path) -> Confinement:
    return Confinement(vault, vault / ".workspaces/own", [vault / ".workspaces"])


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("notes/note.txt", "notes/note.txt"),
        ("{vault}/notes/note.txt", "notes/note.txt"),
        ("./notes/../notes//note.txt", "notes/note.txt"),
        ("to-notes/note.txt", "notes/note.txt"),
        ("to-outside/../notes/note.txt", None),  # two readings, and one of them is outside
        ("new/folder/file.txt", "new/folder/file.txt"),
        ("to-notes/new.txt", "notes/new.txt"),
        (".", "."),
        ("{vault}", "."),
        ("..", None),
        ("../outside/secret.txt", None),
        ("notes/../../outside/secret.txt", None),
        ("new/../../outside/secret.txt", None),
        ("{vault}-of-another/file", None),
        ("/etc/passwd", None),
        ("/", None),
        ("to-outside/secret.txt", None),
        ("to-outside/new.txt", None),
        ("to-outside", None),
        ("to-secret", None),
        ("to-nothing", None),
        ("to-link/secret.txt", None),
        ("notes/cafe\u0301/secret.txt", None),  # the link's name, written another way
        (" /etc/passwd", None),
        ("~", None),
        ("~/x.txt", None),
        (".workspaces/other/x.txt", None),
        ("to-other/x.txt", None),
        (".workspaces", None),
        ("/proc/self/root/etc/passwd", None),
        ("notes/\0", None),
        ("", None),
        (None, None),
        (["notes"], None),
    ],
)
def test_a_path_is_judged_by_where_it_leads(vault: Path, path: object, leads_to: str | None):
    fence = PathConfinement(bounds(vault))
    given = path.replace("{vault}", str(vault)) if isinstance(path, str) else path
    if leads_to is None:
        with pytest.raises(ToolRefused, match="Refused"):
            fence.resolve(given)
    else:
        assert fence.resolve(given) == str((vault / leads_to).resolve())


def test_a_vault_behind_a_link_is_the_same_vault(vault: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(vault)
    fence = PathConfinement(bounds(tmp_path / "link"))
    for path in (
        "notes/note.txt",
        str(vault / "notes/note.txt"),
        f"{tmp_path}/link/notes/note.txt",
    ):
        assert fence.resolve(path) == str(vault / "notes/note.txt")
    with pytest.raises(ToolRefused):
        fence.resolve(str(vault / ".workspaces/other/x.txt"))


@pytest.mark.parametrize(
    ("pattern", "fine"),
    [
        ("**/*.txt", True),
        ("notes/{a,b}*", True),
        ("{vault}/notes/*.txt", True),
        ("{vault}/*", True),
        ("/etc/*", False),
        ("/*", False),
        ("{vault}/to-outside/*", False),
        ("../outside/*", False),
        ("{../outside,notes}/*", False),
        ("~/*", False),
        (None, False),
    ],
)
def test_a_pattern_stays_below_where_it_is_looked_for(vault: Path, pattern: str | None, fine: bool):
    fence = PathConfinement(bounds(vault))
    given = pattern.replace("{vault}", str(vault)) if pattern else pattern
    if fine:
        assert fence.pattern(given) == given
    else:
        with pytest.raises(ToolRefused, match="Refused"):
            fence.pattern(given)


@pytest.mark.parametrize(
    ("tool", "given", "permission"),
    [
        ("read", {"file_path": "notes/note.txt"}, "allow"),
        ("read", {"file_path": "to-secret"}, "deny"),
        ("read", {}, "deny"),
        ("write", {"file_path": "to-nothing", "content": ""}, "deny"),
        ("edit", {"file_path": "/etc/passwd"}, "deny"),
        ("glob", {"pattern": "*"}, "allow"),
        ("glob", {"pattern": "*", "path": None}, "allow"),
        ("glob", {"pattern": "*", "path": ".."}, "deny"),
        ("glob", {"pattern": "/etc/*", "path": "notes"}, "deny"),
        ("grep", {"pattern": "x"}, "allow"),
        ("grep", {"pattern": "x", "path": "to-outside"}, "deny"),
        ("bash", {"command": "true"}, "deny"),
        ("web_fetch", {"url": "http://127.0.0.1/"}, "deny"),
        ("web_search", {"query": "x"}, "allow"),
    ],
)
def test_each_tool_is_kept_in_or_refused(
    vault: Path, tool: str, given: dict[str, object], permission: str
):
    policy = Policy(agent(), bounds(vault))
    verdict = policy.judge(Tool("builtin", tool), given)
    assert verdict.permission == permission
    assert (verdict.reason or "").startswith("Refused" if permission == "deny" else "")


def test_a_tool_is_given_the_place_that_was_judged(vault: Path):
    policy = Policy(agent(), bounds(vault))
    given = {"file_path": "to-notes/note.txt", "limit": 3}
    kept = policy.confined(Tool("builtin", "read"), given)
    assert kept == {"file_path": str(vault / "notes/note.txt"), "limit": 3}
