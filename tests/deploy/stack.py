"""`deploy/compose.yaml` as it is, on a Docker engine of the test's own, with images made on this machine.

There is no registry: what the images are made of comes from Debian's packages and the package index.
The engine and its images stay in `.tools/`, so that the second run builds only what has changed.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx2
from tests.engines import LiveEngine, end_what_is_left, need_engine
from tests.parts import need

from roost.sandboxes.docker.wire import EngineRefused, ask

ROOT = Path(__file__).parent.parent.parent
COMPOSE = ROOT / "deploy" / "compose.yaml"
BUILD = Path(__file__).parent / "images" / "build.yaml"
PARTS = (ROOT / ".tools" / "debian-13").resolve()
HOME = (ROOT / ".tools" / "deploy-engine").resolve()
S3 = ROOT / ".tools" / "s3-4.48" / "bin" / "weed"
KEY = "roost_the_same_key_on_every_node_0123456789"
BASE = "roost-test-base"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PROXIED = f"ENV SSL_CERT_FILE={CERTIFICATES} PIP_CERT={CERTIFICATES} UV_SYSTEM_CERTS=1"
"""The base has this machine's certificates in it, for a proxy before the package index."""


def need_parts() -> None:
    """Go on if the compose file can be run here."""
    need_engine("dockerd")
    parts = (PARTS / "docker-compose", PARTS / "base.tar", S3)
    missing = [str(part) for part in parts if not part.exists()]
    how = f"scripts/install-test-parts debian-13 s3-4.48 ip (as root on Debian; missing: {missing})"
    need("what images are made of, and docker-compose", not missing, how)


class Stack:
    """The services of the compose file. `url` is the balancer's."""

    def __init__(self, engine: LiveEngine) -> None:
        self._engine = engine
        self._gateway, address = "10.77.1.1", "10.77.1.2"
        self.url = f"http://{address}:8700"
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(HOME),
            "DOCKER_HOST": f"unix://{engine.socket}",
            "SERVER_IMAGE": "roost-test-server",
            "BALANCER_IMAGE": "roost-test-haproxy",
            "POSTGRES_IMAGE": "roost-test-postgres",
            "S3_IMAGE": "roost-test-s3",
            "ROOST_API_KEY": KEY,
            "ROOST_MASTER_KEY": b64encode(secrets.token_bytes(32)).decode(),
            "POSTGRES_PASSWORD": secrets.token_hex(16),
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
        }

    def compose(self, *arguments: str, file: Path | None = None) -> str:
        """What the command printed."""
        files = [argument for each in (COMPOSE, file) if each for argument in ("-f", str(each))]
        command = [str(PARTS / "docker-compose"), *files, *arguments]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {(done.stdout + done.stderr)[-4000:]}"
        return done.stdout

    def build(self) -> None:
        """All images, in the machine's own network."""
        self._engine.start(online=True)
        try:
            self._import_base()
            self.compose("build", file=BUILD)
            self._ask("POST", "/images/prune")  # of the run before, without a name by now
            self._ask("POST", "/build/prune?keep-storage=3000000000")
        finally:
            self._engine.stop()

    def up(self) -> None:
        """Three servers and what they need; then wait until all of them answer."""
        self.compose("up", "-d", "--no-build", "--scale", "roost=3")
        wait_until(self._is_whole, "three servers behind the balancer")

    def wire(self) -> None:
        """Between this machine and the engine's network; it goes with the engine."""
        mine, inside = "rwdeploy", ("nsenter", f"--net=/proc/{self._engine.pid}/ns/net", "ip")
        peer = ("peer", "name", "wire", "netns", str(self._engine.pid))
        _run("ip", "link", "add", mine, "type", "veth", *peer)
        _run("ip", "addr", "add", f"{self._gateway}/24", "dev", mine)
        _run("ip", "link", "set", mine, "up")
        _run(*inside, "addr", "add", f"{httpx2.URL(self.url).host}/24", "dev", "wire")
        _run(*inside, "link", "set", "wire", "up")

    def nodes(self) -> list[dict[str, Any]]:
        """As any of the servers sees them."""
        url = f"{self.url}/roost/v1/nodes"
        answer = httpx2.get(url, headers={"x-api-key": KEY}, timeout=30)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["data"]
        return [node for node in found if node["state"] != "down"]

    def replicas(self) -> dict[str, dict[str, Any]]:
        """The servers' containers, by the names of the nodes in them."""
        wanted = quote('{"label": ["com.docker.compose.service=roost"]}')
        found = self._ask("GET", f"/containers/json?all=true&filters={wanted}")
        seen = [self._ask("GET", f"/containers/{each['Id']}/json") for each in found]
        return {each["Config"]["Hostname"]: each for each in seen}

    def crash(self, node: str) -> None:
        """SIGKILL to everything in the container, from outside: for the engine, it has died."""
        os.kill(self.replicas()[node]["State"]["Pid"], signal.SIGKILL)

    def pause(self, node: str, *, again: bool = False) -> None:
        """Stop everything in the container where it is; or let it go on again."""
        verb = "unpause" if again else "pause"
        self._ask("POST", f"/containers/{self.replicas()[node]['Id']}/{verb}")

    def restart(self, node: str) -> None:
        """As an operator would: SIGTERM, and the compose file's grace; back when it is healthy."""
        made = self.replicas()[node]
        self._ask("POST", f"/containers/{made['Id']}/restart?t={made['Config']['StopTimeout']}")
        wait_until(lambda: self.is_healthy(node), f"{node} is healthy again")

    def is_healthy(self, node: str) -> bool:
        return bool(self.replicas()[node]["State"]["Health"]["Status"] == "healthy")

    def metric(self, node: str, name: str) -> float:
        """Of one server, which nobody can ask through the balancer."""
        inside = f"--net=/proc/{self.replicas()[node]['State']['Pid']}/ns/net"
        said = _run("nsenter", inside, "curl", "-fsS", "http://127.0.0.1:8700/metrics")
        [line] = [line for line in said.splitlines() if line.startswith(f"{name} ")]
        return float(line.split()[1])

    def _is_whole(self) -> bool:
        try:
            return len(self.nodes()) == 3
        except (
            httpx2.HTTPError,
            AssertionError,
        ):  # the balancer is not up yet, or knows nobody yet
            return False

    def _import_base(self) -> None:
        tag = int((PARTS / "base.tar").stat().st_mtime)
        try:
            self._ask("GET", f"/images/{BASE}:{tag}/json")
        except EngineRefused:
            changes = quote(PROXIED)
            target = f"/images/create?fromSrc=-&repo={BASE}&tag={tag}&changes={changes}"
            self._ask("POST", target, (PARTS / "base.tar").read_bytes())
        self._ask("POST", f"/images/{BASE}:{tag}/tag?repo={BASE}&tag=latest")

    def _ask(self, method: str, target: str, body: Any = None) -> Any:
        async def once() -> Any:
            return await ask(self._engine.socket, method, target, body, seconds=300)

        return anyio.run(once)


@contextmanager
def running() -> Iterator[Stack]:
    """The whole of it, built from this checkout; nothing of it is left but the images."""
    need_parts()
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (HOME / "daemon.json").write_text("{}")
        engine = LiveEngine("dockerd", HOME)
        stack = Stack(engine)
        stack.build()
        engine.start()
        try:
            stack.wire()
            stack.compose("down", "--volumes", "--remove-orphans")  # of a run that was cut off
            stack.up()
            yield stack
        except BaseException:
            print(stack.compose("logs", "--tail", "100"))
            raise
        finally:
            stack.compose("down", "--volumes", "--timeout", "5")
            engine.stop()
            end_what_is_left(HOME)


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not yet: {what}"
        time.sleep(0.2)


def _run(*command: str) -> str:
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return subprocess.check_output(command, env={"PATH": path}, text=True)
