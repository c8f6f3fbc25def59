"""`roost doctor`: what works on this machine, and what to do about what does not.

Each check is a function from the settings to a finding. A new check is a new function in `CHECKS`.
"""

from __future__ import annotations

import os
import platform
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Literal

import anyio
import httpx2
import msgspec
import tzdata

import roost
from roost.blobs import choice as blobs
from roost.cli.environment import running, server_url
from roost.cli.table import print_json
from roost.config import Settings
from roost.egress.listing import ModelListFailed, models_at
from roost.egress.options import ModelUpstream
from roost.errors import BlobChanged, RoostError, SandboxFailed, StartupError
from roost.harnesses import HARNESSES, WITH_A_KEY, HarnessContext, ModelAddress
from roost.ports.egress import Origin
from roost.sandboxes.choice import chosen
from roost.serve.agents import harnesses_of
from roost.serve.connections import MOST_FILES, most_files
from roost.serve.database import is_postgres
from roost.serve.upstreams import configured

_SLOW_FSYNC_MS = 20
_FEW_FILES = 4096
_CHECK_UPSTREAMS = "Look at its address and key: ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY, or the file of ROOST_UPSTREAMS."
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "afs", "lustre"}


class Finding(msgspec.Struct, frozen=True):
    """What one check found, and what to do about it."""

    level: Literal["ok", "warn", "fail"]
    said: str
    fix: str = ""


Check = Callable[[Settings], Finding]


def examine(settings: Settings, *, as_json: bool) -> int:
    """Run every check and print what they found; 1 if something does not work."""
    found = [(name, check(settings)) for name, check in CHECKS.items()]
    if as_json:
        print_json([{"check": name} | msgspec.structs.asdict(finding) for name, finding in found])
    else:
        for name, finding in found:
            print(f"{finding.level:<5} {name:<15} {finding.said}")
            if finding.fix:
                print(f"{'':<21} {finding.fix}")
    return 1 if any(finding.level == "fail" for _, finding in found) else 0


def python(settings: Settings) -> Finding:
    """It runs, so it is new enough; said because problem reports need it."""
    return Finding("ok", f"{platform.python_implementation()} {platform.python_version()}")


def database(settings: Settings) -> Finding:
    """PostgreSQL must answer. The SQLite that counts is the one inside apsw, not the distribution's."""
    url = settings.database_url.get_secret_value() if settings.database_url else ""
    if is_postgres(url):
        return _postgres(url)
    try:
        import apsw
    except ImportError as error:
        return Finding("fail", f"apsw cannot be imported: {error}", "Run `make setup` again.")
    return Finding("ok", f"SQLite {apsw.sqlite_lib_version()}, in apsw {apsw.apsw_version()}")


def _postgres(url: str) -> Finding:
    from roost.stores.postgres.opening import examine

    try:
        return Finding("ok", anyio.run(examine, url))
    except StartupError as error:
        return Finding("fail", error.message, error.hint or "")


def data_directory(settings: Settings) -> Finding:
    """It must be writable, and on a disk of this machine: SQLite's locks fail on network ones."""
    place = _existing(settings.data)
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding("fail", f"{place} is not writable", "Choose another with --data.")
    kind = filesystem_of(place, Path("/proc/self/mountinfo"))
    if kind in _REMOTE:
        return Finding(
            "fail", f"{place} is on {kind}, over the network", "Choose a local disk with --data."
        )
    return Finding("ok", f"{settings.data.absolute()}" + (f", on {kind}" if kind else ""))


def fsync(settings: Settings) -> Finding:
    """Every acknowledged event costs a share of one of these."""
    try:
        with NamedTemporaryFile(dir=_existing(settings.data), prefix=".roost-doctor-") as probe:
            taken = statistics.median(_timed_fsync(probe.fileno()) for _ in range(15))
    except OSError as error:
        return Finding("fail", f"cannot write: {error.strerror}", "Choose another with --data.")
    said = f"{taken:.1f} ms for a durable write"
    if taken > _SLOW_FSYNC_MS:
        return Finding("warn", said, "A faster disk makes every answer faster.")
    return Finding("ok", said)


def open_files(settings: Settings) -> Finding:
    """Each connection is one. A server raises its soft limit, so the hard one counts."""
    most = most_files()
    if most < _FEW_FILES:
        return Finding(
            "warn",
            f"a server may have {most} open files, so about as many connections",
            f"Raise the hard limit to {MOST_FILES}: `ulimit -Hn` as root, or LimitNOFILE in the service.",
        )
    return Finding("ok", f"a server may have {most}")


def server(settings: Settings) -> Finding:
    """Either one runs and is ready, or its port is free."""
    url = server_url(settings)
    try:
        answer = httpx2.get(f"{url}/readyz", timeout=5, trust_env=False)
    except httpx2.ConnectError:
        return _port(settings, url)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return Finding("fail", f"{url} does not answer: {error}", "See the server's log.")
    if answer.status_code != 200:
        return Finding(
            "fail",
            f"{url} answers {answer.status_code} to /readyz",
            "If that is Roost, see its log; if not, choose another --port.",
        )
    return Finding("ok", f"running and ready at {url}")


def model(settings: Settings) -> Finding:
    """What the server says that runs here; else what one would use that is started in this shell."""
    if (said := running(settings).get("model")) and isinstance(said, str):
        return _running_model(said)
    if settings.upstreams is not None:
        return Finding("ok", f"real, at the upstreams of {settings.upstreams}")
    if settings.anthropic_api_key is None and settings.anthropic_base_url is None:
        return Finding(
            "warn",
            "no key in this shell: a server started here answers from the scripted model",
            "Set ANTHROPIC_API_KEY for a real one.",
        )
    return Finding("ok", f"real, at {settings.anthropic_base_url or 'the Anthropic API'}")


def _running_model(said: str) -> Finding:
    if "scripted" not in said:
        return Finding("ok", f"the running server uses: {said}")
    fix = "Start it with ANTHROPIC_API_KEY set for a real one."
    return Finding("warn", "the running server answers from the scripted model", fix)


def upstreams(settings: Settings) -> Finding:
    """Asks each server of models that a server started in this shell would use for its list."""
    try:
        served = configured(settings)
        found = anyio.run(_asked, served)
    except StartupError as wrong:
        return Finding("fail", wrong.message, wrong.hint or "")
    if not served:
        return Finding("ok", "none is configured: the built-in model answers")
    works = all(each.level == "ok" for each in found)
    said = "; ".join(each.said for each in found)
    return Finding("ok" if works else "warn", said, "" if works else _CHECK_UPSTREAMS)


async def _asked(served: list[ModelUpstream]) -> list[Finding]:
    found: dict[int, Finding] = {}

    async def ask(index: int, each: ModelUpstream) -> None:
        where = f"{each.upstream.name} at {each.origin.url}"
        try:
            listed = await models_at(each.origin)
            found[index] = Finding("ok", f"{where}: answers, {len(listed)} models")
        except ModelListFailed as failed:
            found[index] = Finding("ok" if failed.works else "warn", f"{where}: {failed.message}")

    async with anyio.create_task_group() as tasks:
        for index, each in enumerate(served):
            tasks.start_soon(ask, index, each)
    return [found[index] for index in range(len(served))]


def clock(settings: Settings) -> Finding:
    """A clock behind the files of this installation cannot be right. Schedules go by it, and by rules of zones."""
    newest = max(path.stat().st_mtime for path in Path(roost.__file__).parent.glob("*.py"))
    behind = newest - time.time()
    said = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if behind > 60:
        return Finding("fail", f"{said}: older than Roost's own files", "Set the clock.")
    return Finding("ok", f"{said}; time zones of {tzdata.IANA_VERSION}")


def sandbox(settings: Settings) -> Finding:
    """Opens one and runs a command in it."""
    return anyio.run(_sandbox, settings)


async def _sandbox(settings: Settings) -> Finding:
    try:
        provider = chosen(settings)
        await provider.check()
        limits = await provider.limits_report()
    except (StartupError, SandboxFailed) as missing:
        return Finding("fail", missing.message, missing.hint or "")
    weak = [name for name, how in limits.items() if "each process" in how or "not limited" in how]
    said = "; ".join(f"{name}: {how}" for name, how in limits.items())
    if any(how.startswith("missing:") for how in limits.values()):
        fix = "Pull the images into the engine, or take them out of ROOST_DOCKER_IMAGES."
        return Finding("warn", f"{provider.name} works; {said}", fix)
    if "open: " in limits.get("network", ""):
        return Finding("warn", f"{provider.name} works; {said}", "Turn networking off in the pool.")
    if {"memory", "cpus"} & set(weak):
        fix = "Run the server where it has control groups of its own, e.g. systemd's Delegate=yes."
        return Finding("warn", f"{provider.name} works; {said}", fix)
    return Finding("ok", f"{provider.name} works; {said}")


def harness(kind: str, settings: Settings) -> Finding:
    """Whether agents of this kind can be run here. Sessions that name none need theirs."""
    nowhere = ModelAddress(url="http://127.0.0.1")  # nobody asks it anything here
    context = HarnessContext(
        settings=settings,
        upstreams=defaultdict(lambda: nowhere),
        origin_of=lambda api, model: Origin(url=nowhere.url, protocol=api),
    )
    try:
        found = [known for known, _ in harnesses_of(kind, context)]
    except StartupError as misunderstood:  # no server starts with such settings
        return Finding("fail", misunderstood.message, misunderstood.hint or "")
    said = [f"{each.name} {each.version}" for each in found if each.version is not None]
    lacking = [each for each in found if each.version is None]
    if not lacking:
        return Finding("ok", ", ".join(said) or "none is configured")
    needed = (settings.harness or WITH_A_KEY) in (each.name for each in lacking)
    said += [
        f"{each.name}: {each.missing}" if each.name != kind else each.missing or ""
        for each in lacking
    ]
    fix = " ".join(dict.fromkeys(each.hint for each in lacking if each.hint))
    return Finding("fail" if needed else "warn", "; ".join(said), fix)


def blob_store(settings: Settings) -> Finding:
    """Writes to it, and makes sure that it does not let two move one pointer."""
    if settings.blobs_url is None:
        return Finding("ok", "a folder in the data directory")
    try:
        return anyio.run(_blob_store, settings)
    except RoostError as error:
        return Finding("fail", error.message, error.hint or "")


async def _blob_store(settings: Settings) -> Finding:
    store, key = blobs.chosen(settings), f"doctor/{os.urandom(6).hex()}"
    await store.swap(key, b"first", None)
    try:
        await store.swap(key, b"second", None)
    except BlobChanged:
        return Finding("ok", f"{settings.blobs_url} takes objects and conditional writes")
    finally:
        await store.delete([key])
    return Finding(
        "fail",
        f"{settings.blobs_url} ignores the conditions of conditional writes",
        "Choose a store that honours If-None-Match and If-Match.",
    )


CHECKS: dict[str, Check] = {
    "python": python,
    "database": database,
    "data directory": data_directory,
    "disk": fsync,
    "blob store": blob_store,
    "open files": open_files,
    "server": server,
    "model": model,
    "upstreams": upstreams,
    "sandbox": sandbox,
    **{name: partial(harness, name) for name in HARNESSES},
    "clock": clock,
}


def filesystem_of(place: Path, mounts: Path) -> str:
    """The kind of filesystem a directory is on, by the longest mount point above it."""
    best, kind = -1, ""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return kind
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].replace("\\040", " "))
        if place.absolute().is_relative_to(point) and len(point.parts) > best:
            best, kind = len(point.parts), after.split()[0]
    return kind


def _existing(place: Path) -> Path:
    while not place.exists():
        place = place.absolute().parent
    return place


def _timed_fsync(descriptor: int) -> float:
    os.write(descriptor, b"x" * 4096)
    began = time.perf_counter()
    os.fsync(descriptor)
    return (time.perf_counter() - began) * 1000


def _port(settings: Settings, url: str) -> Finding:
    if settings.url is not None:
        return Finding("fail", f"no server at {url}", "Check --url and $ROOST_URL.")
    try:
        socket.create_server((settings.host, settings.port)).close()
    except OSError as error:
        said = f"cannot listen on {settings.host}:{settings.port}: {error.strerror}"
        return Finding("fail", said, "Choose another with --port.")
    return Finding("ok", f"none runs; port {settings.port} is free")
