"""Opens sandboxes that are containers of a pool."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

import roost
from roost.dynamic_sessions import CodePool, PoolRefused, PoolUnavailable, Token, azure_token
from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import Plan
from roost.sandboxes import sandbox_names
from roost.sandboxes.open_sandboxes import OpenSandboxes
from roost.sandboxes.pool.claims import HELD, Claim, ContainerClaims
from roost.sandboxes.pool.link import EXCHANGE, Link, called
from roost.sandboxes.pool.notes import Notes
from roost.sandboxes.pool.probe import Reach, probed
from roost.sandboxes.pool.rescue import hands_over, rescued
from roost.sandboxes.pool.sandbox import PoolSandbox, Rented
from roost.sandboxes.pool.transfer import places

_log = logging.getLogger(__name__)
_PROGRAM: Final = Path(roost.__file__).parent / "guest" / "commands.py"
_SHORTEST_SECRET: Final = 16
_FILES: Final = "/mnt/data"  # where a pool keeps an identifier's files
_LAUNCH: Final = '''\
def _roost_launch(_given):
    import base64, json, os, subprocess, sys, tempfile, time
    asked = json.loads(base64.b64decode(_given))
    state = os.path.join(tempfile.gettempdir(), "roost-commands.json")
    try:
        with open(state, errors="replace") as file:
            known = file.read(1000)
    except OSError:
        known = None
    if known is not None and asked["token"] not in known:
        return "held:" + known
    base = os.path.join(tempfile.gettempdir(), "roost-" + asked["token"])
    door, log = os.path.join(base, "door"), os.path.join(base, "log")
    if known is None:
        folder = asked["config"]["folder"]
        os.makedirs(base, 0o700)
        os.makedirs(folder, exist_ok=True)
        made = {
            os.path.join(os.path.dirname(folder), ".gitignore"): "*\\n",
            os.path.join(base, "commands.py"): asked["program"],
            os.path.join(base, "config.json"): json.dumps({**asked["config"], "door": door}),
            state: json.dumps({"token": asked["token"], "generation": asked["generation"]}),
        }
        for path, text in made.items():
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        with open(log, "wb") as output:
            subprocess.Popen(
                [sys.executable, "-I", os.path.join(base, "commands.py"), os.path.join(base, "config.json")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
            )
    until = time.monotonic() + 20
    while not os.path.exists(door):
        if time.monotonic() > until:
            with open(log, errors="replace") as file:
                return "failed: " + file.read()[-400:]
        time.sleep(0.005)
    return "door:" + door


_roost_launch("'''


class PoolProvider:
    """`ports.sandbox.SandboxProvider`.

    :param endpoint: the pool's management endpoint
    :param token: None: one of this machine's identity in Azure
    :param secret: makes identifiers of session ids; the same on all nodes
    :param notes: a directory of the server's own, which outlives it
    :param leash: seconds after which everything in a container ends if no server has asked for it
    """

    def __init__(
        self, *, endpoint: str, token: Token | None, secret: str, notes: Path, leash: float = 180.0
    ) -> None:
        self._endpoint = endpoint
        self._token = token
        self._secret = secret.encode()
        self._notes = Notes(notes)
        self._leash = leash
        self._open: OpenSandboxes[PoolSandbox] = OpenSandboxes()
        self._reach: Reach | None = None
        self._failure: SandboxUnavailable | None = None  # of the last probe
        self._probing = anyio.Lock()

    @property
    def name(self) -> str:
        return "pool"

    @property
    def isolates(self) -> bool:
        return True

    async def check(self) -> None:
        if not self._endpoint:
            raise SandboxUnavailable(
                "there is no pool to open sandboxes in",
                hint="Set ROOST_POOL_ENDPOINT to the pool's management endpoint.",
            )
        if len(self._secret) < _SHORTEST_SECRET:
            raise SandboxUnavailable(
                f"ROOST_POOL_SECRET has fewer than {_SHORTEST_SECRET} characters",
                hint="Set it to what `openssl rand -hex 16` prints, the same on all nodes.",
            )
        before = self._failure
        async with self._probing:
            if self._reach is not None:
                return
            if self._failure is not None and self._failure is not before:
                # That of the probe that was waited for: it need not be tried once for each session.
                raise SandboxUnavailable(self._failure.message, hint=self._failure.hint)
            try:
                self._reach = await self._probed()
            except SandboxUnavailable as failure:
                self._failure = failure
                raise

    async def _probed(self) -> Reach:
        identifier = self.identifier(f"check-{secrets.token_hex(8)}")
        async with self._pool(patience=30.0) as pool:
            reach = await probed(pool, self._endpoint, identifier, _FILES)
        if reach.is_open:
            _log.warning("the pool's network is %s", reach.said, extra={"action": "check"})
        return reach

    async def limits_report(self) -> dict[str, str]:
        await self.check()
        reach = "" if self._reach is None else self._reach.said
        own = "the pool's own, whatever ROOST_SANDBOX_* says"
        return {
            "pool": self._endpoint,
            "memory": own,
            "processes": own,
            "cpus": own,
            "open files": "of each process",
            "disk": "a file's size by rlimit; the rest is the pool's own",
            "network": reach,
            "uid": "the pool's own",
        }

    def identifier(self, session_id: str) -> str:
        """How the pool knows a session: whoever has a token of the pool can reach those that he can guess."""
        made = hmac.new(self._secret, f"sandbox\0{session_id}".encode(), sha256).hexdigest()
        return f"roost-{made[:48]}"

    def open(self, plan: Plan) -> AbstractAsyncContextManager[Sandbox]:
        return self._opened(plan)

    @asynccontextmanager
    async def _opened(self, plan: Plan) -> AsyncGenerator[Sandbox, None]:
        if plan.layer is not None or plan.image is not None:
            raise SandboxUnavailable("a container of a pool has no images or packages to choose")
        try:
            async with (
                self._open.slot(plan) as slot,
                self._pool() as pool,
                anyio.create_task_group() as tasks,
            ):
                sandbox = await self._make(plan, pool, tasks)
                slot.take(sandbox)
                try:
                    yield sandbox
                finally:
                    try:
                        await sandbox.stop()
                    finally:
                        sandbox.close()
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the body's own: what runs beside it does not fail

    async def _make(self, plan: Plan, pool: CodePool, tasks: TaskGroup) -> PoolSandbox:
        name = await anyio.to_thread.run_sync(sandbox_names.name_of, plan)
        identifier = self.identifier(plan.session_id)
        claims = ContainerClaims(self._secret, identifier)
        claim = claims.make(plan.generation)
        rented = Rented(pool, identifier, self._notes, name, claims, claim)
        loss = await anyio.to_thread.run_sync(self._notes.opened, identifier, name)
        try:
            door, is_rescued = await self._launched(plan, rented, has_files=loss.is_last)
        except (PoolRefused, PoolUnavailable) as error:
            raise SandboxUnavailable(f"the pool gives no container: {error}") from error
        is_lost = loss.is_last and not is_rescued
        if is_lost:  # noted before there is anything in the new one that could be fetched instead
            await rented.lose()
        link = Link(pool, identifier, f"{EXCHANGE}/{claim.token}", door)
        sandbox = PoolSandbox(plan, rented, link, tasks)
        sandbox.is_behind = loss.is_earlier or is_lost
        try:
            await sandbox.begin()
        except BaseException:
            with anyio.CancelScope(shield=True):
                sandbox.close()
                await sandbox.let_go(is_back=True)
            raise
        return sandbox

    async def _launched(self, plan: Plan, rented: Rented, *, has_files: bool) -> tuple[str, bool]:
        """Start what runs commands there, in a container of its own: its door, and whether the files of an older
        lease's container were fetched, which is ended first. `has_files`: it may have some that are nowhere else.

        :raises PoolRefused: :raises PoolUnavailable: :raises SandboxUnavailable: :raises SandboxFailed:
        """
        token = rented.claim.token
        asked = {
            "token": token,
            "generation": plan.generation,
            "program": await anyio.Path(_PROGRAM).read_text(encoding="utf-8"),
            "config": await anyio.to_thread.run_sync(self._config, plan, token),
        }
        is_rescued = False
        for _ in range(3):
            told = await rented.pool.text(rented.identifier, called(_LAUNCH, asked))
            if told.startswith("door:"):
                return told.removeprefix("door:"), is_rescued
            if not told.startswith(HELD):
                raise SandboxUnavailable(f"a container does not work: {told[:500]}")
            holder = rented.claims.read(told)
            if holder is not None and holder.generation > plan.generation:
                raise SandboxUnavailable("a newer generation of the session has the container")
            if holder is not None and has_files and not is_rescued:
                is_rescued = await rescued(rented.pool, rented.identifier, holder, plan)
                if is_rescued:
                    await rented.settle()
            await rented.pool.end(rented.identifier)
        raise SandboxUnavailable("the pool does not end the session's older container")

    def _config(self, plan: Plan, token: str) -> dict[str, Any]:
        return {
            "folder": f"{_FILES}/{EXCHANGE}/{token}",
            "leash": self._leash,
            "is_one": plan.home == plan.workspace,
            "aliases": [e.target for e in plan.mounts if e.source == plan.workspace.path],
            "targets": [[e.target, e.is_folder] for e in places(plan) if e.target not in _VOLUMES],
            "endpoints": [{"socket": each.socket, "port": each.port} for each in plan.endpoints],
            "limits": {"files": plan.limits.open_files, "size": plan.limits.disk_bytes},
        }

    async def sweep(self) -> None:
        left = await anyio.to_thread.run_sync(lambda: list(self._notes.orphaned()))
        if not left:
            return
        async with self._pool(patience=30.0) as pool:
            for identifier, generation, has_files in left:
                claims = ContainerClaims(self._secret, identifier)
                try:
                    if has_files and await _hands_over(pool, identifier, claims):
                        continue  # until the session is opened again, or the leash ends
                    await claims.end(pool, partial(_is_newer, generation))
                except (PoolRefused, PoolUnavailable) as error:
                    raise SandboxFailed(f"cannot sweep a pool: {error}") from error
                await anyio.to_thread.run_sync(self._notes.ended, identifier)

    @asynccontextmanager
    async def _pool(self, patience: float = 120.0) -> AsyncGenerator[CodePool, None]:
        if self._token is None:
            try:
                self._token = azure_token()
            except ImportError:
                raise SandboxUnavailable(
                    "there is no token for the pool",
                    hint="Set ROOST_POOL_TOKEN, or install roost[azure] to use this machine's identity in Azure.",
                ) from None
        pool = CodePool(self._endpoint, self._token, patience=patience)
        try:
            yield pool
        finally:
            with anyio.CancelScope(shield=True):
                await pool.aclose()


async def _hands_over(pool: CodePool, identifier: str, claims: ContainerClaims) -> bool:
    """Whether a container still has files for the session's next sandbox; all its commands are ended."""
    holder = await claims.holder(pool)
    return holder is not None and await hands_over(pool, identifier, holder)


def _is_newer(generation: int, holder: Claim) -> bool:
    return holder.generation > generation


_VOLUMES: Final = ("/workspace", "/home/sandbox")
