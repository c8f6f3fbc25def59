"""Which packages an environment may name, and what installs them."""

from __future__ import annotations

import subprocess

import pytest

from roost.domain import packages
from roost.domain.packages import InstallStep
from roost.errors import InvalidRequest


def test_a_manager_that_is_not_named_keeps_its_packages() -> None:
    before = packages.checked({"pip": ["pandas==2.2.2"], "npm": ["left-pad"]}, packages.NONE)
    after = packages.checked({"npm": [], "apt": ["jq"]}, before)
    assert after == {**packages.NONE, "pip": ["pandas==2.2.2"], "apt": ["jq"]}
    assert packages.installations(after) == [("apt", ["jq"]), ("pip", ["pandas==2.2.2"])]


@pytest.mark.parametrize(
    "wrong", ["--index-url=http://a", "-e", "two words", "", "line\nbreak", "nul\0", "x" * 257]
)
def test_what_is_no_package_is_refused_by_its_place(wrong: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^config\.packages\.pip\.1: "):
        packages.checked({"pip": ["six", wrong]}, packages.NONE)
    with pytest.raises(InvalidRequest, match=r"^config\.packages\.gem: at most 100"):
        packages.checked({"gem": ["rake"] * 101}, packages.NONE)


def test_a_package_s_name_is_never_a_command() -> None:
    hostile = "$(touch${IFS}planted);`id`;'\"&|>x"
    script = packages.script([InstallStep("pip", [hostile]), InstallStep("go", ["example.com/a"])])
    assert "example.com/a@latest" in script
    shown = script.replace("command -v", ":").replace("python3 -m pip install", "printf '%s\\n'")
    done = subprocess.run(
        ["sh", "-c", shown.replace("go install", "echo").replace("/home/sandbox", "/tmp")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert hostile in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("pandas==2.2.2", "pandas"),
        ("requests[socks]>=2", "requests"),
        ("left-pad@1.3.0", "left-pad"),
        ("@types/node@20", "@types/node"),
        ("jq=1.6-2", "jq"),
        ("rake:13.0", "rake"),
    ],
)
def test_a_failure_names_the_package_without_its_version(package: str, name: str) -> None:
    wanted = InstallStep("pip", ["other", package])
    said = f"Collecting other\nNo matching distribution found for {name}\nTry again."
    assert packages.culprits(wanted, said) == [package]
    assert packages.culprits(wanted, "no space left") == ["other", package]


@pytest.mark.parametrize(
    ("manager", "program"),
    [
        ("apt", "$apt install -y"),
        ("cargo", "cargo install --root /usr/local"),
        ("gem", "gem install --no-document"),
        ("go", "go install"),
        ("npm", "npm install --global --prefix /usr/local"),
        ("pip", "python3 -m pip install"),
    ],
)
def test_each_manager_installs_with_its_own_program(manager: str, program: str) -> None:
    wanted = packages.checked({manager: ["a-package@1"]}, packages.NONE)
    script = packages.script(packages.installations(wanted))
    assert program in script
    assert "set -- a-package@1\n" in script
    assert f"the program {packages.program_of(manager)} is missing" in script
    assert not [
        other for other in packages.MANAGERS if other != manager and f"roost {other} " in script
    ]
