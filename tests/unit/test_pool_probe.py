"""A pool that cannot do what sandboxes need is known for what it is before there is one."""

from __future__ import annotations

import ast
import base64
import json
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from roost.cli import doctor
from roost.config import Settings
from roost.dynamic_sessions import CodePool, PoolAnswer, PoolRefused, PoolUnavailable
from roost.errors import SandboxUnavailable
from roost.sandboxes.pool import PoolProvider, provider

Json = dict[str, Any]
NO_NETWORK = {"has_route": False, "reaches": False, "proxies": []}


class FakePool(CodePool):
    """Runs code in this process; `spoil` is what becomes of what it ends with, `told` of what the probe tells."""

    def __init__(
        self,
        folder: Path,
        spoil: Callable[[str], Any] = lambda text: text,
        *,
        ends: bool | None = True,
        **told: Any,
    ) -> None:
        self.folder = folder
        self.spoil = spoil
        self.ends = ends
        self.told = {**NO_NETWORK, **told}
        self.runs = 0

    async def run(self, identifier: str, code: str) -> Any:
        await anyio.lowlevel.checkpoint()
        self.runs += 1
        *body, last = ast.parse(code).body
        space: Json = {}
        exec(compile(ast.Module(body, []), "code", "exec"), space)
        assert isinstance(last, ast.Expr)
        text = eval(compile(ast.Expression(last.value), "code", "eval"), space)
        told = {**json.loads(base64.b64decode(text.removeprefix("probe:"))), **self.told}
        return self.spoil(f"probe:{base64.b64encode(json.dumps(told).encode()).decode()}")

    async def upload(self, identifier: str, folder: str, name: str, data: bytes) -> None:
        path = anyio.Path(self.folder / folder)
        await path.mkdir(exist_ok=True)
        await (path / name).write_bytes(data)

    async def end(self, identifier: str) -> None:
        if self.ends is None:
            raise PoolRefused("HTTP 405: no", 405)
        if self.ends:
            await anyio.Path(self.folder / "roost-probe").unlink()

    async def aclose(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(provider, "_FILES", str(tmp_path))


def provider_of(pool: CodePool, monkeypatch: pytest.MonkeyPatch) -> PoolProvider:
    monkeypatch.setattr(provider, "CodePool", lambda *about, **more: pool)
    notes = Path(tempfile.gettempdir()) / "notes"
    return PoolProvider(
        endpoint="https://pool.example/p", token="token", secret="s" * 16, notes=notes
    )


@pytest.mark.parametrize("spoil", [str, repr, json.dumps])
async def test_a_pool_that_works_may_quote_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[str], Any]
) -> None:
    made = provider_of(FakePool(tmp_path, spoil), monkeypatch)
    await made.check()
    said = (await made.limits_report())["network"]
    assert said == "off in the pool: a container has no route to other machines"


async def test_sessions_that_start_together_probe_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    async def check() -> None:
        try:
            await made.check()
        except SandboxUnavailable as error:
            refused.append(error.message)

    pool = FakePool(tmp_path, lambda text: 42)
    made = provider_of(pool, monkeypatch)
    for runs in (1, 3):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(check)
        assert pool.runs == runs
        pool.spoil = str
    assert (len(refused), len(set(refused))) == (3, 1)


def without(key: str) -> Callable[[str], str]:
    """Takes this out of what the probe tells."""

    def spoil(text: str) -> str:
        told = json.loads(base64.b64decode(text.removeprefix("probe:")))
        del told[key]
        return f"probe:{base64.b64encode(json.dumps(told).encode()).decode()}"

    return spoil


@pytest.mark.parametrize("key", ["python", "has_sh", "file", "was_there", *NO_NETWORK])
async def test_an_answer_that_lacks_something_is_none_and_its_container_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    pool = FakePool(tmp_path, without(key))
    with pytest.raises(SandboxUnavailable, match="does not answer with what its code ends with"):
        await provider_of(pool, monkeypatch).check()
    assert not (tmp_path / "roost-probe").exists()


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ({"spoil": lambda text: 42}, "does not answer with what its code ends with: '42'"),
        ({"spoil": lambda text: "probe:W10="}, "does not answer with what its code ends with"),
        ({"ends": None}, "does not end containers: HTTP 405"),
        ({"ends": False}, "says that a container was ended, and gives the same one again"),
        ({"python": [3, 10]}, "have Python older than 3.11"),
        ({"has_sh": False}, "have no sh"),
        ({"file": ""}, "a file that is uploaded to it is not in"),
    ],
)
async def test_a_pool_that_lacks_something_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: Json, said: str
) -> None:
    with pytest.raises(SandboxUnavailable, match=said) as refused:
        await provider_of(FakePool(tmp_path, **pool), monkeypatch).check()
    assert refused.value.hint


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"has_route": True, "reaches": True}, "open: a container reaches pool.example past"),
        ({"has_route": True}, "perhaps open: a container has a route"),
        ({"proxies": ["HTTPS_PROXY"]}, "perhaps open: a container has a proxy (HTTPS_PROXY)"),
    ],
)
async def test_a_network_that_is_not_off_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    told: Json,
    said: str,
) -> None:
    made = provider_of(FakePool(tmp_path, **told), monkeypatch)
    with caplog.at_level(logging.WARNING):
        await made.check()
        await made.check()
    (record,) = caplog.records
    assert said in record.getMessage()
    monkeypatch.setattr(doctor, "chosen", lambda settings: made)
    found = await doctor._sandbox(Settings(data=tmp_path))
    assert (found.level, found.fix) == ("warn", "Turn networking off in the pool.")


async def test_a_pool_that_does_not_wait_for_the_end_of_code_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def sent(self: CodePool, *about: Any) -> PoolAnswer:
        return PoolAnswer(202, "", b'{"status": "Running", "result": {}}')

    monkeypatch.setattr(CodePool, "_sent", sent)
    pool = CodePool("http://127.0.0.1:9", "token", patience=0.05)
    with pytest.raises(PoolUnavailable, match="answers before the code has ended"):
        await pool.run("id", "1+1")
    await pool.aclose()


@pytest.mark.parametrize(
    ("answered", "text"),
    [("'a:b'", "a:b"), ('"held:{\\"a\\": 1}"', 'held:{"a": 1}'), ("'12:ab", "12:ab"), ("a'", "a'")],
)
async def test_quotes_are_taken_off(
    monkeypatch: pytest.MonkeyPatch, answered: str, text: str
) -> None:
    async def run(self: CodePool, *about: Any) -> str:
        return answered

    monkeypatch.setattr(CodePool, "run", run)
    pool = CodePool("http://127.0.0.1:9", "token")
    assert await pool.text("id", "code") == text
    await pool.aclose()
