"""What is in `deploy/` fits the server that is in `src/`."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import yaml
from tests.docs.reading import ROOT, text
from tests.parts import need

from roost.api.operations import OPERATIONS
from roost.config import Settings

COMPOSE: dict[str, Any] = yaml.safe_load(text("deploy/compose.yaml"))
RECIPE = text("deploy/Dockerfile")
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


def test_no_server_has_any_privilege_and_both_ways_ask_for_the_same() -> None:
    """What the compose file asks for is what the long tests run with; the manifest asks for no less."""
    roost = COMPOSE["services"]["roost"]
    assert roost["cap_drop"] == ["ALL"]
    assert not {"privileged", "cap_add", "devices", "user"} & set(roost)
    assert set(roost["security_opt"]) == {
        "no-new-privileges",
        "seccomp=seccomp.json",
        "systempaths=unconfined",
        "apparmor=unconfined",
    }
    [container] = pod()["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "procMount": "Unmasked",
    }
    assert pod()["hostUsers"] is False  # without it, procMount is refused
    [uid] = re.findall(r"useradd --uid (\d+)", RECIPE)
    assert pod()["securityContext"] == {
        "runAsNonRoot": True,
        **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), int(uid)),
        "seccompProfile": {"type": "Localhost", "localhostProfile": "roost.json"},
        "appArmorProfile": {"type": "Unconfined"},
    }


def test_every_variable_of_ours_is_a_setting() -> None:
    """Also those that an operator exports for the compose file: the command `roost` reads them too."""
    known = {f"ROOST_{name}".upper() for name in Settings.model_fields}
    for path in sorted((ROOT / "deploy").rglob("*")):
        if path.is_file():
            named = set(re.findall(r"\bROOST_[A-Z_]*[A-Z]", path.read_text()))
            assert named <= known, f"{path.name}: {named - known}"


def test_whoever_asks_how_a_server_is_asks_what_it_answers() -> None:
    known = {operation.path for operation in OPERATIONS}
    [container] = pod()["containers"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("readiness", "liveness", "startup")]
    assert {probe["port"] for probe in probes} == {"http"}
    asked = [probe["path"] for probe in probes]
    asked += re.findall(r"http://127\.0\.0\.1:8700(/\w+)", RECIPE)
    asked += re.findall(r":8700(/\w+)", str(COMPOSE["services"]["roost"]["healthcheck"]))
    asked += re.findall(r"httpchk GET (/\w+)", text("deploy/haproxy.cfg"))
    assert len(asked) == 6
    assert set(asked) <= known


def test_everybody_means_the_same_port_and_folder() -> None:
    said = dict(re.findall(r"(ROOST_\w+)=(\S+)", RECIPE))
    port = said["ROOST_PORT"]
    assert re.findall(r"^EXPOSE (\d+)$", RECIPE, re.M) == [port]
    assert re.findall(r" roost:(\d+) ", text("deploy/haproxy.cfg")) == [port]
    [container] = pod()["containers"]
    assert [str(each["containerPort"]) for each in container["ports"]] == [port]
    assert [each["targetPort"] for each in of_kind("Service")["spec"]["ports"]] == ["http"]
    folders = [each["mountPath"] for each in container["volumeMounts"]]
    assert folders == re.findall(r"^VOLUME (\S+)$", RECIPE, re.M) == [said["ROOST_DATA"]]
    assert [each["name"] for each in container["volumeMounts"]] == [
        each["name"] for each in pod()["volumes"]
    ]


@pytest.mark.parametrize("version", ["1.30.0", "1.37.0"])
def test_the_manifest_is_what_kubernetes_takes(version: str) -> None:
    """Every object by its schema, and nothing in it that the schema does not know."""
    program = ROOT / ".tools" / "k8s-1.37.0" / "bin" / "kubernetes-validate"
    need("kubernetes-validate", program.exists(), "scripts/install-test-parts k8s-1.37.0")
    asked = [program, "--strict", "-k", version, "deploy/kubernetes/roost.yaml"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert said.count("passed") == len(MANIFEST)


def test_every_image_has_a_version_and_can_be_another() -> None:
    images = [each["image"] for each in COMPOSE["services"].values() if "build" not in each]
    assert all(re.fullmatch(r"\$\{[A-Z0-9]+_IMAGE:-[\w/]+:\d[\d.]*\}", each) for each in images)
    assert COMPOSE["services"]["roost"]["image"] == "${SERVER_IMAGE:-roost}"
    assert re.search(r":\d", pod()["containers"][0]["image"])


def test_whatever_the_image_is_made_of_is_in_the_repository_and_let_in() -> None:
    copied = [
        word
        for line in re.findall(r"^COPY (?!--)(.+)$", RECIPE, re.M)
        for word in line.split()[:-1]
    ]
    let_in = re.findall(r"^!(.+)$", text("deploy/Dockerfile.dockerignore"), re.M)
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert name in let_in, f"{name} is not in deploy/Dockerfile.dockerignore"
