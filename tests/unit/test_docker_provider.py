"""What a provider of containers knows of its engine, which is not needed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roost.errors import SandboxUnavailable
from roost.ports.sandbox_provider import LocalVolume, Mount, Plan
from roost.sandboxes.docker import DockerProvider
from roost.sandboxes.docker.engine import LABEL, PLACE
from roost.sandboxes.docker.recipe import uncounted
from roost.sandboxes.docker.wire import EngineRefused


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def given(tmp_path: Path) -> DockerProvider:
    return DockerProvider(socket=tmp_path / "none", image="usual", data=tmp_path)


async def test_only_certificates_of_images_that_were_used_lately_are_kept(
    given: DockerProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    looked: list[str] = []

    async def image_id(name: str) -> str:
        return f"id-{name}"

    async def image_file(image: str, paths: Any) -> bytes:
        looked.append(image)
        return f"of {image}\n".encode()

    monkeypatch.setattr(given._engine, "image_id", image_id)
    monkeypatch.setattr(given._engine, "image_file", image_file)
    (tmp_path / "authority").write_text("the session's\n")
    home, trusted = LocalVolume(tmp_path), tmp_path / "trusted"
    shown: dict[str, Any] = {"certificates": trusted, "authority": tmp_path / "authority"}
    plan = Plan(session_id="s", generation=1, home=home, workspace=home, **shown)
    for number in range(40):
        for image in ("usual", f"layer-{number}"):
            await given._trust_image(plan, image)
            assert trusted.read_text() == f"of id-{image}\nthe session's\n"
    assert looked.count("id-usual") == 1
    assert len(looked) == 41
    assert len(given._certificates) == 8


def test_volumes_of_an_image_are_covered_or_refused(tmp_path: Path):
    home, room = LocalVolume(tmp_path), Mount(tmp_path, "/srv/room", writable=True)
    plan = Plan(session_id="s", generation=1, home=home, workspace=home, mounts=[room])
    ours = ["/home/sandbox", "/workspace/", "//tmp", "/srv/room"]
    assert uncounted(plan, [*ours, "/var/lib/data/", "opt"]) == ["/var/lib/data", "/opt"]
    for inner in ("/workspace/data", "/home/sandbox/x", "/srv/room/../room/x"):
        with pytest.raises(SandboxUnavailable, match="has a volume at /"):
            uncounted(plan, [inner])


async def test_builds_take_room_where_the_engine_keeps_its_images(
    given: DockerProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said: dict[str, Any] = {"DockerRootDir": str(tmp_path)}

    async def ask(*_: object) -> Any:
        return said

    monkeypatch.setattr("roost.sandboxes.docker.engine.ask", ask)
    assert await given.takes_room_in() == [tmp_path, tmp_path]
    for elsewhere in ("/no/such/directory", ""):
        said["DockerRootDir"] = elsewhere
        assert await given.takes_room_in() == [tmp_path]


@pytest.mark.parametrize(
    ("status", "said"), [(404, "has no image 'usual'"), (500, "does not work: the disk is full")]
)
async def test_an_engine_that_refuses_is_said_to_lack_an_image_only_if_it_does(
    given: DockerProvider, monkeypatch: pytest.MonkeyPatch, status: int, said: str
):
    async def image_id(name: str) -> str:
        raise EngineRefused(status, "the disk is full")

    monkeypatch.setattr(given._engine, "image_id", image_id)
    with pytest.raises(SandboxUnavailable, match=f"^the engine {said}$"):
        await given.layer_of({})


async def test_a_container_that_is_only_looked_at_has_no_place_of_its_image(
    given: DockerProvider, monkeypatch: pytest.MonkeyPatch
):
    """Layers of older servers name the build's there: another server would remove it as left behind."""
    made: list[Any] = []

    async def create(_name: str, container: Any) -> str:
        made.append(container)
        return "id"

    async def nothing(*_: Any) -> None:
        pass

    monkeypatch.setattr(given._engine, "create", create)
    monkeypatch.setattr(given._engine, "_file", nothing)
    monkeypatch.setattr(given._engine, "remove", nothing)
    assert await given._engine.image_file("layer", ["/etc/ssl/cert.pem"]) is None
    assert made[0]["Labels"] == {LABEL: "look", PLACE: ""}
