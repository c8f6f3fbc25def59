"""Sandboxes are found by name: those that are shipped, and those that other packages bring."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from roost import registry
from roost.config import Settings
from roost.errors import StartupError
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import ImageProvider, Plan, SandboxProvider
from roost.sandboxes import HOST, SANDBOXES
from roost.sandboxes.choice import chosen, fallbacks, others


class Kubernetes:
    """What a package might bring."""

    name = "kubernetes"
    isolates = True

    async def check(self) -> None: ...

    @asynccontextmanager
    async def open(self, plan: Plan) -> AsyncGenerator[Sandbox, None]:
        raise NotImplementedError
        yield

    async def sweep(self) -> None: ...

    async def limits_report(self) -> dict[str, str]:
        return {}


def make(settings: Settings) -> SandboxProvider:
    return Kubernetes()


def settings(**fields: Any) -> Settings:
    return Settings(data=Path("/nowhere"), **fields)


@pytest.fixture
def _another(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        EntryPoint(name, f"{__name__}:make", "roost.sandboxes") for name in ("kubernetes", HOST)
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints(found))


def test_each_sandbox_that_is_shipped_has_the_name_it_is_found_by():
    made = {name: SANDBOXES.load(name)(settings()) for name in SANDBOXES}
    assert {name: provider.name for name, provider in made.items()} == {
        name: name for name in ("bubblewrap", "docker", "host", "pool")
    }
    assert [name for name, provider in made.items() if not provider.isolates] == [HOST]


def test_the_host_is_there_for_those_who_are_trusted_with_it():
    assert [provider.name for provider in others(settings())] == ["docker"]
    trusting = settings(trust_levels="sandboxed,full", sandbox_fallbacks="bubblewrap")
    assert [provider.name for provider in others(trusting)] == [HOST]


@pytest.mark.parametrize("setting", ["sandbox", "sandbox_fallbacks"])
def test_a_sandbox_that_is_not_there_is_an_error_that_names_those_that_are(setting: str):
    wrong = settings(**{setting: "podman"})
    with pytest.raises(
        StartupError, match=f"ROOST_{setting.upper()}: there is no sandbox 'podman'"
    ) as caught:
        chosen(wrong), others(wrong)
    assert "bubblewrap, docker" in (caught.value.hint or "")


@pytest.mark.parametrize("setting", ["sandbox", "sandbox_fallbacks"])
def test_what_does_not_isolate_is_no_sandbox_for_a_sandboxed_session(setting: str):
    wrong = settings(**{setting: HOST})
    with pytest.raises(StartupError, match="'host' does not isolate") as caught:
        chosen(wrong), others(wrong)
    assert "ROOST_TRUST_LEVELS" in (caught.value.hint or "")


@pytest.mark.usefixtures("_another")
def test_a_package_brings_a_sandbox_and_takes_no_name_that_is_shipped():
    assert isinstance(chosen(settings(sandbox="kubernetes")), Kubernetes)
    assert fallbacks() == ["bubblewrap", "docker", "pool", "kubernetes"]
    assert not SANDBOXES.load(HOST)(settings()).isolates


def test_images_have_names_that_environments_choose_them_by():
    given = chosen(
        settings(sandbox="docker", docker_images="node=node:22, rust=a.b:5/c@sha256:0=1")
    )
    assert isinstance(given, ImageProvider)
    assert list(given.images) == ["node", "rust"]
    assert not isinstance(chosen(settings(docker_images="node=node:22")), ImageProvider)
    for wrong in ("node", "=node:22", "node=", "no de=x", "a=b,a=c"):
        with pytest.raises(StartupError, match=r"ROOST_DOCKER_IMAGES: .* is not NAME=IMAGE"):
            chosen(settings(sandbox="docker", docker_images=wrong))
