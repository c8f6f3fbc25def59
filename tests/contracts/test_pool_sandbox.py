"""A container of a pool keeps the contract, as far as a pool can give it; the pool is one that Roost serves."""

from __future__ import annotations

import json
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
import pytest
from pydantic import SecretStr
from tests.hostile.probed_sandbox import (
    ENVIRON,
    INSIDE,
    PROBES,
    SECRET,
    keep_record,
    things_outside,
)
from tests.pool.sandbox_pool import MODULE, PoolHeart, SandboxPool, sandbox_pool

from roost import dynamic_sessions
from roost.config import Settings
from roost.dynamic_sessions import CodePool
from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.away_sandbox import AwaySandbox
from roost.ports.sandbox_provider import Endpoint, LocalVolume, Mount, Plan, UnixAddress
from roost.sandboxes import sandbox_names
from roost.sandboxes.choice import chosen
from roost.sandboxes.pool import link, provider
from roost.sandboxes.pool.notes import Notes
from roost.testing.sandbox_contract import SandboxContract
from roost.testing.sandbox_contract.apart import ApartContract
from roost.testing.sandbox_contract.commands import CommandContract
from roost.testing.sandbox_contract.ends import EndContract
from roost.testing.sandbox_contract.files import FileContract
from roost.testing.sandbox_contract.kit import Heart, Kit, finish, run, shell

pytestmark = pytest.mark.xdist_group("pool-sandbox")

_LIMITS: Final = "the limits of a container are the pool's own"
_COPIES: Final = "files are copies, which nothing in a container protects"
DEVIATIONS: Final = {
    "test_memory_over_the_limit_is_not_given": _LIMITS,
    "test_memory_is_counted_over_all_commands": _LIMITS,
    "test_processes_over_the_limit_are_not_started": _LIMITS,
    "test_processor_time_over_the_limit_is_not_given": _LIMITS,
    "test_all_files_together_do_not_stay_over_the_disk_limit": _LIMITS,
    "test_there_is_room_of_its_own_where_programs_look_for_it": _LIMITS,
    "test_two_sessions_can_share_a_workspace": "each has a copy",
    "test_a_mount_can_be_read_and_only_written_if_it_says_so": _COPIES,
    "test_what_the_workspace_hides_is_seen_in_the_home_alone": _COPIES,
    "test_what_is_planted_where_the_workspace_hides_something_leads_nowhere": _COPIES,
    "test_nothing_can_be_put_into_a_mount_or_into_what_it_hides": _COPIES,
    "test_other_certificates_can_take_the_place_of_the_systems": "the system is the pool's own",
}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxPool]:
    with sandbox_pool(tmp_path_factory.mktemp("pool")) as pool:
        yield pool


class InPool(Kit):
    factory = f"{MODULE}:make"
    deviations = DEVIATIONS
    steps_apart = 25

    @pytest.fixture(autouse=True)
    def _pool(self, pool: SandboxPool) -> None:
        self._data = pool.server.data

    def heart(self, plan: Plan) -> Heart:
        return PoolHeart(self._data)


class TestPoolInBrief(InPool):
    """What an agent cannot do without; a container takes a second."""

    test_pipes = CommandContract.test_a_command_reads_its_input_and_writes_its_output
    test_signal = CommandContract.test_a_signal_reaches_the_command_itself
    test_waits = CommandContract.test_output_that_nobody_reads_makes_the_command_wait
    test_environment = CommandContract.test_the_environment_is_what_was_given_and_nothing_else
    test_files = FileContract.test_the_workspace_outlives_the_sandbox
    test_home = FileContract.test_the_home_outlives_the_sandbox
    test_hidden = FileContract.test_what_a_mount_hides_looks_empty_and_its_links_lead_nowhere
    test_stop = EndContract.test_stop_kills_what_does_not_want_to_die
    test_generations = EndContract.test_an_older_sandbox_is_gone_before_a_newer_one_is_open
    test_way_out = ApartContract.test_an_endpoint_is_the_way_out


@pytest.mark.chaos
class TestPool(InPool, SandboxContract):
    """All of it."""


class LossyPool(CodePool):
    """Loses requests on their way there and answers on their way back."""

    async def _sent(self, *about: Any) -> Any:
        chance = random.random()
        if chance < 0.2:
            raise dynamic_sessions._Passing("lost on its way there")
        response = await super()._sent(*about)
        if chance < 0.4:
            raise dynamic_sessions._Passing("lost on its way back")
        return response


async def test_what_is_lost_on_the_way_is_neither_missing_nor_doubled(
    pool: SandboxPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_sessions, "_LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(provider, "CodePool", LossyPool)
    count = "import sys\nfor line in sys.stdin: print(int(line) + 1, flush=True)"
    async with pool.provider().open(plan_in(tmp_path)) as sandbox:
        process = await sandbox.spawn(["python3", "-c", count])
        output = b""
        for number in range(40):
            await process.send(f"{number}\n".encode())
            while output.count(b"\n") <= number // 2:
                output += await process.receive()
        await process.close_input()
        assert output + (await finish(process)).output == b"".join(
            f"{number + 1}\n".encode() for number in range(40)
        )
        large = await run(sandbox, "sh", "-c", "head -c 300000 /dev/zero; echo >note")
        assert len(large.output) == 300_000
    assert (tmp_path / "home" / "note").exists()


async def test_a_container_that_is_replaced_ends_its_commands_and_not_the_session(
    pool: SandboxPool, tmp_path: Path
) -> None:
    made = pool.provider()
    async with made.open(plan_in(tmp_path)) as sandbox:
        assert isinstance(sandbox, AwaySandbox)
        assert (await run(sandbox, "sh", "-c", "echo one >note; rm -f old; mkdir d")).code == 0
        await sandbox.bring_back()
        process = await sandbox.spawn(["sh", "-c", "echo two >note; echo there; sleep 600"])
        assert await process.receive() == b"there\n"
        await pool.replace(made.identifier("sesn_1"))
        with anyio.fail_after(120), pytest.raises(SandboxFailed):
            await process.wait()
        with pytest.raises(SandboxFailed):
            await sandbox.spawn(["true"])
    async with made.open(plan_in(tmp_path, 2)) as sandbox:
        assert isinstance(sandbox, AwaySandbox)
        assert sandbox.is_behind
        assert (await run(sandbox, "cat", "note")).output == b"one\n"
        await sandbox.bring_back()
        await pool.replace(made.identifier("sesn_1"))  # nothing is lost with it
    async with made.open(plan_in(tmp_path, 3)) as sandbox:
        assert isinstance(sandbox, AwaySandbox)
        assert not sandbox.is_behind
        assert (await run(sandbox, "ls")).output.split() == [b"d", b"note", b"roost-exchange"]


async def test_neither_an_older_lease_nor_a_sweep_ends_the_container_of_a_newer_one(
    pool: SandboxPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is on a node of its own, and they know the container by one identifier."""
    monkeypatch.setattr(link, "_WAIT", 0.2)
    first, second, third = (pool.provider(node=f"node-{number}") for number in range(3))
    given = plan_in(tmp_path)
    is_open, close, is_closed = anyio.Event(), anyio.Event(), anyio.Event()

    async def older() -> None:
        async with first.open(given):
            is_open.set()
            await close.wait()
        is_closed.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(older)
        await is_open.wait()
        async with second.open(plan_in(tmp_path, 2)) as sandbox:
            close.set()
            await is_closed.wait()
            assert (await run(sandbox, "echo", "still")).output == b"still\n"
            own = sandbox_names.read(sandbox_names.name_of(given))
            assert own is not None
            holder = f"{own.namespace}.{own.pid}.{own.start + 1}"
            dead = f"roost-{holder}-{own.session}-1-{own.chance}"
            notes = Notes(pool.root / "node-2")
            notes.opened(third.identifier("sesn_1"), dead)
            await third.sweep()
            assert list(notes.orphaned()) == []
            with pytest.raises(SandboxUnavailable, match="newer generation"):
                async with first.open(given):
                    pass
            assert (await run(sandbox, "echo", "there")).output == b"there\n"


async def test_the_files_of_a_turn_that_its_server_did_not_survive_are_fetched(
    pool: SandboxPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server starts again and sweeps, and the session goes on: with what is still in the container."""
    monkeypatch.setattr(link, "_WAIT", 0.2)
    made = pool.provider(node="node-cut")
    given = plan_in(tmp_path)
    (given.home.path / "removed").write_text("x")
    async with made.open(given) as sandbox:
        assert isinstance(sandbox, AwaySandbox)
        process = await sandbox.spawn(
            ["sh", "-c", "rm removed; echo cut >note; echo there; sleep 600"]
        )
        assert await process.receive() == b"there\n"
        own = sandbox_names.read(sandbox_names.name_of(given))
        assert own is not None
        dead = f"roost-{own.namespace}.{own.pid}.{own.start + 1}-{own.session}-1-{own.chance}"
        notes = Notes(pool.root / "node-cut")
        notes.write(made.identifier("sesn_1"), dead, is_changed=True)
        await pool.provider(node="node-cut").sweep()
        with anyio.fail_after(120):
            assert await process.wait() == -9
        assert not (given.home.path / "note").exists()
        async with pool.provider(node="node-cut").open(plan_in(tmp_path, 2)) as second:
            assert isinstance(second, AwaySandbox)
            assert not second.is_behind
            assert (await run(second, "cat", "note")).output == b"cut\n"
            assert not (given.home.path / "removed").exists()


async def test_what_a_file_is_changed_to_comes_back_and_what_is_removed_goes(
    pool: SandboxPool, tmp_path: Path
) -> None:
    given = plan_in(tmp_path)
    home = given.home.path
    (home / "folder").mkdir()
    (home / "folder" / "gone").write_text("gone")
    (home / "kept").write_text("kept")
    (home / "program").write_text("#!/bin/sh\necho ran\n")
    (home / "program").chmod(0o755)
    before = (home / "kept").stat()
    script = """
        ./program && rm -r folder && mkdir -p new/er && echo 1 >new/er/file && ln -s new/er link
        chmod 600 program; mkfifo pipe; printf '\\377' >"$(printf 'na\\nme')"
    """
    async with pool.provider().open(given) as sandbox:
        assert (await shell(sandbox, script)).output == b"ran\n"
        await sandbox.bring_back()  # type: ignore[attr-defined]
        assert sorted(path.name for path in home.iterdir()) == [
            "kept",
            "link",
            "na\nme",
            "new",
            "program",
        ]
        assert (
            await shell(sandbox, "rm link; ln new/er/file second; echo 2 >>new/er/file")
        ).code == 0
    assert (home / "new" / "er" / "file").read_text() == "1\n2\n"
    assert (home / "second").read_text() == "1\n2\n"
    assert not (home / "link").is_symlink()
    assert (home / "program").stat().st_mode & 0o777 == 0o600
    assert (home / "kept").stat().st_ino == before.st_ino


_TALK = """
import os, socket
host, _, port = os.environ["ADDRESS"].removeprefix("http://").partition(":")
stream = socket.create_connection((host, int(port)))
stream.sendall(b"x" * 700_000)
stream.shutdown(socket.SHUT_WR)
got = b""
while data := stream.recv(65536):
    got += data
print(len(got), got[-4:].decode(), os.environ["ADDRESS"])
"""


async def test_what_a_program_says_to_a_port_reaches_its_endpoint_and_comes_back(
    pool: SandboxPool, tmp_path: Path
) -> None:
    """Also if something else has the port in the container, as the pool's own egress has this one."""
    heard = anyio.Event()

    async def take(connection: socket.socket) -> None:
        tasks.start_soon(answer, connection)

    async def answer(connection: socket.socket) -> None:
        got = b""
        with connection:
            while True:
                await anyio.wait_readable(connection)
                if not (data := connection.recv(65536)):
                    break
                got += data
            assert got == b"x" * 700_000
            heard.set()
            back = b"y" * 900_000 + b"done"
            while back:
                await anyio.wait_writable(connection)
                back = back[connection.send(back) :]

    endpoint = Endpoint(
        address=UnixAddress(tmp_path / "nobody"), socket="/run/roost/x.sock", port=3128, take=take
    )
    given = msgspec.structs.replace(plan_in(tmp_path), endpoints=[endpoint])
    async with anyio.create_task_group() as tasks, pool.provider().open(given) as sandbox:
        for address in ("http://127.0.0.1:3128", "localhost:3128"):
            said = await run(sandbox, "python3", "-c", _TALK, environ={"ADDRESS": address})
            assert said.output.split()[:2] == [b"900004", b"done"], said.errors
            assert heard.is_set()


async def test_the_doctor_says_what_is_missing(pool: SandboxPool, tmp_path: Path) -> None:
    good = Settings(
        data=tmp_path,
        sandbox="pool",
        pool_endpoint=pool.endpoint,
        pool_token=SecretStr(pool.server.key),
        pool_secret=SecretStr("a secret that nobody can guess"),
    )
    for change, said in (
        ({"pool_endpoint": None}, "there is no pool"),
        ({"pool_secret": SecretStr("short")}, "ROOST_POOL_SECRET"),
        ({"pool_token": SecretStr("wrong")}, "the pool does not work: HTTP 401"),
    ):
        with pytest.raises(SandboxUnavailable, match=said):
            await chosen(good.model_copy(update=change)).check()
    made = chosen(good)
    await made.check()
    assert (await made.limits_report())["pool"] == pool.endpoint


def plan_in(folder: Path, generation: int = 1) -> Plan:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    volume = LocalVolume(home)
    return Plan(session_id="sesn_1", generation=generation, home=volume, workspace=volume)


# What probes find in a container of a pool that bubblewrap hides, and why: docs/sandboxes.md declares it.
KNOWN: Final = {
    "fs.agents_record": "nothing hides the agent's record in the workspace",
}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder everybody can get to: nothing but the container is in the way."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def test_hostile_programs_find_no_more_in_a_container_than_the_pool_gives(
    pool: SandboxPool, tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOST_TEST_SECRET", SECRET)
    given = plan_in(tmp_path)
    keep_record(given.home.path)
    given = msgspec.structs.replace(
        given, mounts=[Mount(PROBES, INSIDE)], environ=ENVIRON, hidden=[".claude"]
    )
    with things_outside(open_folder) as facts:
        async with pool.provider().open(given) as sandbox:
            process = await sandbox.spawn(["python3", "-m", "roost.testing.probes.inside"])
            await process.send(json.dumps(facts).encode())
            await process.close_input()
            code, output, errors = await finish(process)
    assert code == 0, errors.decode()
    found = json.loads(output)
    assert len(found) >= 50
    opened = {name: got["detail"] for name, got in found.items() if got["verdict"] == "open"}
    assert set(opened) <= set(KNOWN), opened
    assert {got["verdict"] for got in found.values()} <= {"blocked", "info", "open"}
