"""What is in `deploy/` fits the server that is in `src/`."""

from __future__ import annotations

import re
from typing import Any

import yaml
from tests.docs.reading import ROOT, text

from roost.config import Settings

COMPOSE: dict[str, Any] = yaml.safe_load(text("deploy/compose.yaml"))
MANIFEST: list[dict[str, Any]] = list(yaml.safe_load_all(text("deploy/kubernetes/roost.yaml")))


def of_kind(kind: str) -> dict[str, Any]:
    [found] = [each for each in MANIFEST if each["kind"] == kind]
    return found


def pod() -> dict[str, Any]:
    found: dict[str, Any] = of_kind("Deployment")["spec"]["template"]["spec"]
    return found


def ours(environ: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(("ROOST_", "ANTH"))}


def test_a_server_would_start_with_the_settings_of_the_compose_file() -> None:
    given = ours(COMPOSE["services"]["roost"]["environment"])
    Settings.read({name: "" if "${" in value else value for name, value in given.items()})


def test_a_server_would_start_with_the_settings_of_the_manifest() -> None:
    [container] = pod()["containers"]
    secret = ours(of_kind("Secret")["stringData"])
    own = {each["name"]: each.get("value", "pod-1") for each in container["env"]}
    Settings.read(secret | own)
    # A Service named `roost` would otherwise give each pod variables such as ROOST_PORT.
    assert pod()["enableServiceLinks"] is False


def test_a_stopping_server_has_more_time_than_its_turns_are_given() -> None:
    roost = COMPOSE["services"]["roost"]
    grace = int(roost["stop_grace_period"].removesuffix("s"))
    assert grace > float(roost["environment"]["ROOST_STOP_SECONDS"]) + 5
    [container] = pod()["containers"]
    own = {each["name"]: each.get("value") for each in container["env"]}
    waits = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    stops = float(own["ROOST_STOP_SECONDS"] or 0)
    assert pod()["terminationGracePeriodSeconds"] > waits + stops + 5


def test_no_server_has_any_privilege() -> None:
    roost = COMPOSE["services"]["roost"]
    assert roost["cap_drop"] == ["ALL"]
    assert "privileged" not in roost
    assert "cap_add" not in roost
    assert {"no-new-privileges", "seccomp=seccomp.json"} <= set(roost["security_opt"])
    [container] = pod()["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert pod()["securityContext"]["runAsNonRoot"] is True


def test_every_image_has_a_version() -> None:
    images = [each["image"] for each in COMPOSE["services"].values() if "build" not in each]
    images.append(pod()["containers"][0]["image"])
    assert all(re.search(r":\d", image) for image in images), images


def test_whatever_the_image_is_made_of_is_in_the_repository_and_let_in() -> None:
    recipe = text("deploy/Dockerfile")
    copied = [
        word
        for line in re.findall(r"^COPY (?!--)(.+)$", recipe, re.M)
        for word in line.split()[:-1]
    ]
    let_in = re.findall(r"^!(.+)$", text("deploy/Dockerfile.dockerignore"), re.M)
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert name in let_in, f"{name} is not in deploy/Dockerfile.dockerignore"
