"""The server inside a container: with the settings of `deploy/`, bubblewrap works there, without privilege."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from tests.engines import IMAGE, LiveEngine

from roost.sandboxes.docker.profile import around_server
from roost.sandboxes.docker.wire import ask

pytestmark = pytest.mark.xdist_group("docker")
ROOT = Path(__file__).parent.parent.parent
PROFILE = ROOT / "deploy" / "seccomp.json"

# Opens a sandbox as the server does, and tells what it found inside, and what it could not do.
INSIDE = """
import anyio, json, sys
from pathlib import Path
from roost.errors import RoostError
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes.bubblewrap import BubblewrapProvider
from roost.testing.sandbox_contract.kit import run

async def main():
    home = Path("/tmp/home")
    home.mkdir()
    provider = BubblewrapProvider(data=Path("/tmp/data"))
    try:
        await provider.check()
        async with provider.open(Plan(session_id="s", generation=1, home=LocalVolume(home), workspace=LocalVolume(home))) as sandbox:
            told = await run(sandbox, "sh", "-c", "id -u; echo $$; ls /proc | grep -c '^[0-9]'; unshare -U true && echo open")
        return {"inside": told.output.decode().split(), "uid": __import__("os").geteuid()}
    except RoostError as error:
        return {"error": error.message, "hint": error.hint}

Path("/told/told").write_text(json.dumps(anyio.run(main)))
"""


def settings(told: Path, *, profile: bool = True) -> dict[str, Any]:
    """The container of `deploy/compose.yaml`, with this machine's programs in it."""
    said = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["roost"]
    assert {"systempaths=unconfined", "seccomp=seccomp.json"} <= set(said["security_opt"])
    here = {str(ROOT), str(Path(sys.executable).resolve().parent.parent), "/usr"}
    security = ["no-new-privileges"]
    if profile:
        security.append(f"seccomp={PROFILE.read_text()}")
    return {
        "Init": True,
        "NetworkMode": "none",
        "CapDrop": said["cap_drop"],
        "SecurityOpt": security,
        "MaskedPaths": [],  # which is what `systempaths=unconfined` means
        "ReadonlyPaths": [],
        "Tmpfs": {"/tmp": "exec,mode=1777"},
        "Binds": [f"{told}:/told", *(f"{path}:{path}:ro" for path in sorted(here))],
    }


async def run_in(engine: LiveEngine, command: Sequence[str], host: dict[str, Any]) -> int:
    """The exit code of a command in a container, as somebody without rights."""
    body = {
        "Image": IMAGE,
        "Cmd": list(command),
        "User": "1000:1000",
        "WorkingDir": str(ROOT),
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1"],
        "HostConfig": host,
    }
    made = (await ask(engine.socket, "POST", "/containers/create", body))["Id"]
    try:
        await ask(engine.socket, "POST", f"/containers/{made}/start")
        ended = await ask(engine.socket, "POST", f"/containers/{made}/wait", seconds=600)
        return int(ended["StatusCode"])
    finally:
        await ask(engine.socket, "DELETE", f"/containers/{made}?force=true")


def tell(engine: LiveEngine, folder: Path, **how: bool) -> dict[str, Any]:
    folder.chmod(0o777)
    command = [sys.executable, "-c", INSIDE]
    assert anyio.run(run_in, engine, command, settings(folder, **how)) == 0
    told: dict[str, Any] = json.loads((folder / "told").read_text())
    return told


def test_the_profile_in_deploy_is_the_one_that_the_code_makes() -> None:
    made = json.dumps(around_server(), indent=1) + "\n"
    assert PROFILE.read_text() == made, "write it anew: scripts/deploy-profile"


def test_bubblewrap_works_in_a_container_without_any_privilege(
    docker: LiveEngine, tmp_path: Path
) -> None:
    told = tell(docker, tmp_path)
    assert told.get("uid") == 1000, told
    uid, pid, processes = told["inside"]
    assert (uid, int(pid) < 10, int(processes) < 10) == ("1000", True, True), told


@pytest.mark.chaos
def test_without_the_profile_it_says_so(docker: LiveEngine, tmp_path: Path) -> None:
    told = tell(docker, tmp_path, profile=False)
    assert "bubblewrap does not work here" in told.get("error", ""), told


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_the_whole_contract_of_sandboxes_holds_in_a_container(
    docker: LiveEngine, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    tests = "tests/contracts/test_bubblewrap.py::TestBubblewrapWithoutControlGroups"
    script = (
        f"{sys.executable} -m pytest -m chaos -q --no-cov -p no:cacheprovider -p no:randomly -n 0 "
        f"--basetemp=/tmp/pytest {tests} > /told/output 2>&1"
    )
    code = anyio.run(run_in, docker, ["sh", "-c", script], settings(tmp_path))
    output = (tmp_path / "output").read_text()
    print(output[-2000:])
    assert code == 0, output[-6000:]
    assert "passed" in output
