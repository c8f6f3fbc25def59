"""Who a sandbox is on the host: never root, never another session."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from tests.hostile.probed_sandbox import provider
from tests.parts import need

from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes import procfs
from roost.sandboxes.bubblewrap.identity import Uids
from roost.testing.sandbox_contract.kit import run

# Uids are the whole machine's, and others run this file at the same time.
_FIRST = random.randrange(310_000, 2_000_000, 100)
UIDS = range(_FIRST, _FIRST + 100)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _root() -> None:
    need("root", os.geteuid() == 0, "running as root: others have one uid for all sessions")


def plan(folder: Path, session: str = "sesn_1", generation: int = 1) -> Plan:
    home = folder / session
    home.mkdir(exist_ok=True)
    return Plan(
        session_id=session,
        generation=generation,
        home=LocalVolume(home),
        workspace=LocalVolume(home),
    )


def _uids(pid: int) -> set[int]:
    """Real, effective, saved, for files."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("Uid:")]
    return {int(word) for word in line.split()[1:]}


async def uid_of(sandbox: Sandbox, home: Path) -> int:
    """By what it writes, since inside it is always 1000."""
    assert (await run(sandbox, "sh", "-c", "id -u; touch mark")).output == b"1000\n"
    return (home / "mark").lstat().st_uid


async def test_two_live_sessions_have_two_uids_whichever_server_they_belong_to(
    tmp_path: Path,
) -> None:
    one, other = plan(tmp_path, "sesn_a"), plan(tmp_path, "sesn_b")
    async with (
        provider(uids=UIDS).open(one) as a,
        provider(uids=UIDS).open(other) as b,
    ):
        uids = {await uid_of(a, one.home.path), await uid_of(b, other.home.path)}
    assert len(uids) == 2
    assert uids <= set(UIDS)


async def test_a_session_keeps_its_uid_while_nobody_else_has_it(tmp_path: Path) -> None:
    sandboxes = provider(uids=UIDS)
    async with sandboxes.open(plan(tmp_path)) as sandbox:
        first = await uid_of(sandbox, tmp_path / "sesn_1")
    async with sandboxes.open(plan(tmp_path, generation=2)) as sandbox:
        assert await uid_of(sandbox, tmp_path / "sesn_1") == first
    with Uids(range(first, first + 1)).hold("sesn_thief", []):
        async with sandboxes.open(plan(tmp_path, generation=3)) as sandbox:
            assert await uid_of(sandbox, tmp_path / "sesn_1") != first
            assert (await run(sandbox, "rm", "mark")).code == 0


async def test_when_all_uids_are_taken_no_sandbox_is_opened(tmp_path: Path) -> None:
    sandboxes = provider(uids=UIDS[:1])
    async with sandboxes.open(plan(tmp_path, "sesn_a")):
        with pytest.raises(SandboxUnavailable, match="in use"):
            async with sandboxes.open(plan(tmp_path, "sesn_b")):
                pass
    async with sandboxes.open(plan(tmp_path, "sesn_b")) as sandbox:
        assert (await run(sandbox, "true")).code == 0


async def test_nothing_of_a_sandbox_runs_as_root(tmp_path: Path) -> None:
    """Not even what stands around the command: uid 1000 inside would be root outside."""
    sandboxes = provider(uids=UIDS, use_cgroups=False)
    async with sandboxes.open(plan(tmp_path)) as sandbox:
        process = await sandbox.spawn(["sleep", "60"])
        uid = await uid_of(sandbox, tmp_path / "sesn_1")
        family = procfs.descendants([process.pid])  # type: ignore[attr-defined]
        found = [_uids(seen.pid) for seen in family]
    assert found == [{uid}] * 3  # bwrap outside, bwrap inside, the command


async def test_a_home_that_is_missing_is_said_plainly(tmp_path: Path) -> None:
    missing = Plan(
        session_id="s",
        generation=1,
        home=LocalVolume(tmp_path / "no"),
        workspace=LocalVolume(tmp_path / "no"),
    )
    with pytest.raises(SandboxUnavailable, match="No such file"):
        async with provider(uids=UIDS).open(missing):
            pass


async def test_what_the_machine_does_not_let_us_do_is_the_sandbox_s_failure() -> None:
    """And never the output of a command."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)  # noqa: PTH101 - so that bwrap looks for what is in it itself
        given = plan(Path(name))
        async with provider(uids=UIDS).open(given) as sandbox:
            os.rename(given.home.path, Path(name, "away"))  # noqa: PTH104 - nothing else runs meanwhile
            with pytest.raises(SandboxFailed, match="sesn_1"):
                await sandbox.spawn(["true"])


async def test_how_limits_are_in_force_is_told() -> None:
    told = await provider(uids=UIDS).limits_report()
    assert told["uid"] == "one per session"
    assert set(told) == {"memory", "processes", "cpus", "open files", "disk", "root", "kill", "uid"}
