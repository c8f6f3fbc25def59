"""The command line against the real server, through what a server can go through."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cli.conftest import Roost
from tests.cli.test_chat import Terminal
from tests.oauth_world import OAuthWorld, oauth_world

from roost.api.access.auth import MANAGED_AGENTS
from roost.testing.live import LiveServer

SLOW = 'SCRIPT[{"text":"one two three four five six","chunk_delay":0.2}]'


@pytest.fixture(scope="module")
def world() -> Iterator[OAuthWorld]:
    with oauth_world() as world:
        yield world


@pytest.fixture(scope="module")
def server(world: OAuthWorld, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("live"), **world.rules()) as server:
        yield server


def roost(server: LiveServer, *arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        [sys.executable, "-m", "roost", *arguments],
        env=os.environ | {"ROOST_DATA": str(server.data)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == more.get("code", 0), ran.stdout + ran.stderr
    return ran


@pytest.fixture
def said(roost: Roost, server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What the command says when it is run in this process, which takes a tenth of the time."""
    monkeypatch.setenv("ROOST_DATA", str(server.data))

    def call(*arguments: str, code: int = 0, out: bool = False) -> str:
        left, printed, complained = roost(*arguments)
        assert left == code, printed + complained
        return complained if code and not out else printed

    return call


def test_a_conversation_goes_on_by_its_session(server: LiveServer) -> None:
    assert "1 user message " in roost(server, "chat", "--once", "Hello").stdout
    session = json.loads(roost(server, "sessions", "ls", "--json").stdout)[0]
    again = roost(server, "chat", "--once", "--session", session["id"], "Hello again")
    assert "2 user messages" in again.stdout
    assert "agent.message" in roost(server, "logs", session["id"]).stdout
    assert session["id"] in roost(server, "sessions", "show", session["id"]).stdout
    assert roost(server, "sessions", "rm", session["id"]).stdout == f"deleted {session['id']}\n"
    assert "hint:" not in roost(server, "logs", session["id"], code=1).stdout


def test_the_one_node_of_a_data_directory_is_drained_and_resumed(
    server: LiveServer, said: Callable[..., str]
) -> None:
    shown = said("node", "ls").splitlines()
    assert [shown[0].split()[0], shown[1].split()[2]] == ["ID", "up"]
    assert "drains" in said("node", "drain")
    deadline = time.monotonic() + 60
    while httpx2.get(f"{server.url}/readyz").status_code != 503:  # it hears of it in a moment
        assert time.monotonic() < deadline
        time.sleep(0.02)
    [node] = json.loads(said("node", "ls", "--json"))
    assert node["state"] == "draining"
    resumed = json.loads(said("node", "resume", node["id"], "--json"))
    assert resumed["state"] == "up"
    assert "1 user message " in said("chat", "--once", "Hello")


def test_workspaces_are_made_set_up_shared_and_removed(said: Callable[..., str]) -> None:
    said = partial(said, "workspaces")
    made = said("create", "my notes", "--quota", "20GB", "--writers", "serialised").strip()
    assert made.startswith("wksp_")
    assert said("ls").splitlines()[1].split()[:5] == [
        made,
        "my",
        "notes",
        "20000000000",
        "serialised",
    ]
    shown = said("settings", "my notes", "--quota", "default", "--keep-days", "7")
    assert "quota_bytes     -" in shown and "keep_days       7" in shown
    assert "everyone        read" in said("share", made, "--everyone", "--access", "read")
    assert "hint:" in said("share", made, code=1)
    assert "name            letters" in said("rename", made, "letters")
    assert "is no size" in said("settings", "letters", "--quota", "much", code=1)
    assert said("rm", "letters", "--force") == f"deleted {made}\n"
    assert "there is no workspace" in said("rm", "letters", code=1)


FIRST, SECOND, THIRD = (
    f"{word}-secret-of-this-vault-0123" for word in ("first", "second", "third")
)


Vaults = Callable[..., str]


@pytest.fixture
def vaults(said: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Vaults]:
    """`roost vaults …`, with secrets by standard input. Nothing that it says has one of them."""
    told: list[str] = []

    def call(*arguments: str, secret: str = "", code: int = 0, out: bool = False) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO(secret))
        told.append(said("vaults", *arguments, code=code, out=out))
        return told[-1]

    yield call
    assert not [secret for secret in (FIRST, SECOND, THIRD) if secret in "".join(told)]


def test_secrets_are_put_into_vaults_used_replaced_and_removed(
    said: Callable[..., str], vaults: Vaults
) -> None:
    team = vaults("create", "team", "--metadata", "for=web").strip()
    assert team.startswith("vlt_")
    variable = ("add", "team", "--variable", "SITE_KEY", "--host", "api.example.org")
    credential = vaults(*variable, "--name", "of the site", secret=f"{FIRST}\n").strip()
    [row] = vaults("credentials", "team").splitlines()[1:]
    assert row.split()[:6] == [credential, "environment_variable", "SITE_KEY", "of", "the", "site"]
    [shown] = json.loads(vaults("credentials", team, "--json"))
    assert shown["auth"]["networking"] == {"type": "limited", "allowed_hosts": ["api.example.org"]}
    assert shown["auth"]["injection_location"] == {"header": True, "body": False}
    assert "SITE_KEY" in vaults(*variable, secret=FIRST, code=1)  # there is one in use
    replaced = vaults("replace", "team", credential, secret=SECOND)
    assert replaced == f"replaced the secret of {credential}\n"

    again = ("chat", "--once", "--session", "sesn_1", "--vault", "team", "Hello")
    assert "is for a new session" in said(*again, code=1)

    gateway = ("--model-key", "--base-url", "https://gateway.example")
    account = vaults("create", "account", *gateway).strip()
    vaults("add", "account", "--model-key", secret=THIRD)
    assert "roost.base_url  https://gateway.example" in vaults("show", "account")
    uses = dict(line.split()[:3:2] for line in vaults("ls").splitlines())
    assert (uses[team], uses[account]) == ("tools", "model")

    assert vaults("archive-credential", team, credential) == f"archived {credential}\n"
    assert len(vaults("credentials", "team").splitlines()) == 1
    assert credential in vaults("credentials", "team", "--all")
    assert vaults("rm-credential", "team", credential) == f"deleted {credential}\n"
    assert vaults("archive", "team") == f"archived {team}\n"
    assert team not in vaults("ls") and team in vaults("ls", "--all")
    assert vaults("rm", team, "account") == f"deleted {team}\ndeleted {account}\n"


def shown(vaults: Vaults, vault: str) -> list[Any]:
    found: list[Any] = json.loads(vaults("credentials", vault, "--json"))
    return found


def test_vaults_and_what_is_no_secret_of_a_credential_are_edited(vaults: Vaults) -> None:
    made = vaults("create", "draft", "--metadata", "for=web").strip()
    assert vaults("edit", "draft", "--name", "tools", "--metadata", "for=") == f"changed {made}\n"
    assert "for=" not in vaults("show", "tools")
    vaults("add", "tools", "--variable", "SITE_KEY", "--host", "a.example.org", secret=FIRST)
    hosts = ("--host", "b.example.org", "--host", "*.c.example.org")
    vaults("edit-credential", "tools", "SITE_KEY", *hosts, "--name", "site", "--metadata", "a=b")
    row = vaults("credentials", "tools").splitlines()[1]
    assert "SITE_KEY  site  b.example.org, *.c.example.org (header)" in row
    vaults("edit-credential", "tools", "site", "--any-host", "--body", "--name", "")
    [credential] = shown(vaults, "tools")
    assert (credential["display_name"], credential["metadata"]) == (None, {"a": "b"})
    assert credential["auth"]["networking"] == {"type": "unrestricted"}
    assert credential["auth"]["injection_location"] == {"header": False, "body": True}

    theirs = "sandbox0.managed_agents."
    old = ("--metadata", f"{theirs}role=llm", "--metadata", f"{theirs}engine=claude")
    vaults("create", "account", *old)
    vaults("edit", "account", "--engine", "claude", "--key-header", "bearer")
    vaults("add", "account", "--model-key", secret=SECOND)
    moved = vaults("edit", "account", "--base-url", "https://gateway.example", code=1)
    assert "cannot be changed while the vault has a key" in moved
    vaults("edit", "account", "--key-header", "")
    assert "key_header" not in vaults("show", "account")
    vaults("rm", "tools", "account")


def test_a_token_of_oauth_is_put_into_a_vault_tried_renewed_and_replaced(
    vaults: Vaults, world: OAuthWorld
) -> None:
    vaults("create", "grants")
    server = ("add", "grants", "--oauth", "--mcp", world.url)
    renewed = ("--token-endpoint", world.token_endpoint, "--client-id", "client")
    answer = {"access_token": FIRST, "refresh_token": world.authorization.refresh}
    given = json.dumps(answer | {"expires_in": 3600, "token_type": "Bearer"})
    vaults(*server, *renewed, "--scope", "read", secret=given)
    [found] = shown(vaults, "grants")
    assert found["auth"]["refresh"]["scope"] == "read"
    assert (
        3500
        < (datetime.fromisoformat(found["auth"]["expires_at"]) - datetime.now(UTC)).seconds
        <= 3600
    )
    said = vaults("validate", "grants", world.url)
    assert (
        said
        == "valid: the MCP server accepts the token; it was renewed, and the new one is stored\n"
    )
    vaults("replace", "grants", world.url, secret=f"{SECOND}\n{THIRD}\n")
    [found] = shown(vaults, "grants")
    assert found["auth"]["expires_at"] is None  # that was of the token before
    refused = vaults("validate", "grants", world.url, code=1, out=True)
    assert refused.startswith("invalid: the MCP server does not accept the token, and the token")
    assert "endpoint gave 400" in refused and "invalid_grant" in refused
    vaults("edit-credential", "grants", world.url, "--scope", "read write", "--name", "docs")
    vaults("replace", "grants", "docs", secret=f"{world.authorization.access}\n")
    assert vaults("validate", "grants", "docs") == "valid: the MCP server accepts the token\n"

    nowhere = ("add", "grants", "--oauth", "--mcp", "http://127.0.0.1:9/mcp")
    away = vaults(*nowhere, secret=THIRD).strip()
    unknown = vaults("validate", "grants", away, code=1, out=True)
    assert unknown == "unknown: the MCP server could not be reached\n"
    vaults("rm", "grants")


def test_what_does_not_fit_a_vault_is_said(
    said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    for name in ("once", "twice", "twice"):
        said("vaults", "create", name)
    mcp = ("--mcp", "https://mcp.example.org")
    for arguments, says in (
        (("add", "twice", "--model-key"), "2 vaults are called 'twice'"),
        (("add", "nobody", "--model-key"), "there is no vault 'nobody'"),
        (("add", "once"), "one of --mcp, --variable and --model-key"),
        (("add", "once", "--model-key", *mcp), "one of --mcp, --variable and --model-key"),
        (("add", "once", "--variable", "KEY"), "name hosts with --host"),
        (("add", "once", *mcp, "--any-host"), "are for --variable"),
        (("add", "once", "--variable", "KEY", "--any-host"), "there is no secret"),
        (("create", "x", "--engine", "claude"), "are for vaults with --model-key"),
        (("edit", "once"), "say what to change"),
        (("edit-credential", "once", "KEY", "--name", "x"), "there is no credential 'KEY' in use"),
        (("add", "once", "--model-key", "--oauth"), "--oauth is for --mcp"),
        (("add", "once", *mcp, "--client-id", "c"), "are for --oauth"),
        (("add", "once", *mcp, "--oauth", "--client-id", "c"), "belong together"),
        (("add", "once", *mcp, "--oauth", "--scope", "s"), "for tokens that are renewed"),
        (("add", "once", *mcp, "--oauth"), "there is no access token"),
        (("add", "once", "--variable", "K", "--any-host", "--host", "a.b"), "not both"),
        (("create", "x", "--metadata", "note"), "'note' is not KEY=VALUE"),
    ):
        assert says in said("vaults", *arguments, code=1)


def test_secrets_that_are_typed_are_not_shown(server: LiveServer, said: Callable[..., str]) -> None:
    vault = said("vaults", "create", "typed").strip()
    command = ("vaults", "add", vault, "--mcp", "https://mcp.example.org/mcp", "--oauth")
    endpoint = ("--token-endpoint", "https://login.example.org/token", "--client-id", "c")
    how = ("--client-auth", "client_secret_basic")
    with Terminal(server.url, *command, *endpoint, *how) as terminal:
        for what, secret in (("Access", FIRST), ("Refresh", SECOND)):
            terminal.wait_for(f"{what} token (not shown): ")
            terminal.type(f"{secret}\n")
        terminal.wait_for("Client secret (not shown): ")
        terminal.type(f"{THIRD}\n")
        terminal.wait_for("vcrd_")
        assert not [it for it in (FIRST, SECOND, THIRD) if it in terminal.shown]
    added = json.loads(said("vaults", "credentials", vault, "--json"))
    assert added[0]["auth"]["refresh"]["token_endpoint_auth"] == {"type": "client_secret_basic"}


def test_a_chat_outlives_a_server_that_is_killed_in_the_middle_of_an_answer(
    server: LiveServer,
) -> None:
    chat = subprocess.Popen(
        [sys.executable, "-m", "roost", "chat", "--once", SLOW],
        env=os.environ | {"ROOST_DATA": str(server.data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert chat.stdout is not None
    shown = chat.stdout.read(len("one two"))
    server.kill()
    server.start()
    rest, err = chat.communicate(timeout=300)
    assert chat.returncode == 0, err
    assert "reconnecting…" in err and "connected again" in err
    whole = "one two three four five six"
    answers = [line for line in (shown + rest).splitlines() if line]
    assert answers[-1] == whole
    assert all(whole.startswith(line.rstrip()) for line in answers), "nothing but this answer"


def test_a_followed_log_shows_each_event_once_across_restarts(server: LiveServer) -> None:
    roost(server, "chat", "--once", "Hello")
    session = json.loads(roost(server, "sessions", "ls", "--json").stdout)[0]
    with Follower(server, session["id"]) as follower:
        follower.wait_for_rests(1)
        for stop in (server.kill, server.stop):
            stop()
            server.start()
            roost(server, "chat", "--once", "--session", session["id"], "And now?")
        follower.wait_for_rests(3)
    listed = roost(server, "logs", "--json", session["id"]).stdout.splitlines()
    assert follower.events == [json.loads(line) for line in listed]


def test_keys_are_managed_on_the_server(said: Callable[..., str]) -> None:
    secret = said("key", "create", "ci", "--max-sessions", "3").strip()
    keys = json.loads(said("key", "ls", "--json"))
    assert secret not in json.dumps(keys)
    [made] = [key for key in keys if key["name"] == "ci"]
    said("key", "revoke", made["id"])
    table = said("key", "ls")
    assert re.search(rf"{made['id']}.*ci.*20\d\d-.*20\d\d-", table)


def test_the_doctor_finds_the_server_healthy(server: LiveServer) -> None:
    assert f"running and ready at {server.url}" in roost(server, "doctor").stdout


def test_a_data_directory_has_one_server(server: LiveServer) -> None:
    refused = roost(server, "serve", "--port", "0", code=3)
    assert "another Roost server" in refused.stderr


class Follower:
    """`roost logs -f`, read as it comes; Ctrl-C at the end."""

    def __init__(self, server: LiveServer, session_id: str) -> None:
        self.events: list[dict[str, str]] = []
        self._rested = threading.Semaphore(0)
        self._rests = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "roost", "logs", "-f", "--json", session_id],
            env=os.environ | {"ROOST_DATA": str(server.data)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read)

    def __enter__(self) -> Follower:
        self._reading.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(60) == 0
        self._reading.join()

    def wait_for_rests(self, count: int) -> None:
        while self._rests < count:
            assert self._rested.acquire(timeout=300), self.events
            self._rests += 1

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.events.append(json.loads(line))
                if self.events[-1]["type"] == "session.status_idle":
                    self._rested.release()


def test_the_master_key_is_rotated_while_the_server_runs(
    roost: Roost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "rotated"
    monkeypatch.setenv("ROOST_DATA", str(data))
    headers = {"anthropic-beta": MANAGED_AGENTS, "anthropic-version": "2023-06-01"}
    with LiveServer(data) as before:
        headers["x-api-key"] = before.key
        at = f"{before.url}/v1/vaults"
        vault = httpx2.post(at, headers=headers, json={"display_name": "v"}).json()["id"]
        auth = {"type": "static_bearer", "mcp_server_url": "https://a.example", "token": "t"}
        made = httpx2.post(f"{at}/{vault}/credentials", headers=headers, json={"auth": auth})
        assert made.status_code == 200
    with LiveServer(data, ROOST_MASTER_KEY=b64encode(bytes(32)).decode()):
        code, out, _ = roost("key", "rotate-master")
        assert (code, out.splitlines()[0][:30]) == (0, "1 of 1 secrets sealed anew wit")
        code, out, _ = roost("key", "rotate-master", "--json")
        told = json.loads(out)
        assert (code, told["resealed"], told["sealed_with"]) == (0, 0, {told["key"]: 1})
    (data / "keys" / "master.key").unlink()
    with LiveServer(data, ROOST_MASTER_KEY=b64encode(bytes(32)).decode()) as after:
        at = f"{after.url}/v1/vaults/{vault}/credentials/{made.json()['id']}"
        patch = {"auth": {"type": "static_bearer", "token": "u"}}  # it is opened for that
        assert httpx2.post(at, headers=headers, json=patch).status_code == 200
    with LiveServer(data, ROOST_MASTER_KEY=b64encode(bytes(range(32))).decode()):
        code, out, err = roost("key", "rotate-master")
        assert (code, "0 of 1 secrets" in out, "no key of this server opens" in err) == (
            1,
            True,
            True,
        )


def test_deployments_are_made_run_paused_changed_and_archived(said: Callable[..., str]) -> None:
    said("chat", "--once", "Hello")  # makes an agent and an environment
    said = partial(said, "deployment")
    with_it = ("--agent", "roost-chat", "--environment", "roost-chat", "--message", "Hello")
    when = ("--cron", "30 2 29 2 *", "--timezone", "Europe/Berlin", "--missed", "latest")
    made = said("create", "--name", "leap", *with_it, *when, "--metadata", "team=web").strip()
    assert made.startswith("depl_")
    assert said("ls").splitlines()[1].split()[:3] == [made, "leap", "active"]
    shown = said("show", "leap")
    assert "30 2 29 2 * (Europe/Berlin)" in shown
    assert "latest, 86400 seconds back" in shown
    edited = said("edit", made, "--timezone", "UTC", "--window", "600", "--metadata", "team=")
    assert edited == f"changed {made}\n"
    now = json.loads(said("show", made, "--json"))
    assert [now["schedule"]["expression"], now["schedule"]["timezone"]] == ["30 2 29 2 *", "UTC"]
    assert now["missed_runs"] == {"policy": "latest", "window_seconds": 600}
    assert now["metadata"] == {}
    assert said("pause", "leap") == f"paused {made}\n"
    assert said("ls").splitlines()[1].split()[2] == "paused"
    session = said("run", made).strip()
    assert session.startswith("sesn_")
    assert said("runs", made).splitlines()[1].split()[3:] == ["hand", "started", session]
    assert json.loads(said("runs", made, "--state", "skipped", "--json")) == []
    assert json.loads(said("unpause", made, "--json"))["status"] == "active"
    said("edit", made, "--cron", "", "--workspace", "")
    assert "none: by hand only" in said("show", made)
    assert said("archive", made) == f"archived {made}\n"
    assert made not in said("ls")
    assert made in said("ls", "--all")


def test_what_does_not_fit_a_deployment_is_said(said: Callable[..., str]) -> None:
    said("chat", "--once", "Hello")
    said = partial(said, "deployment")
    with_it = ("--agent", "roost-chat", "--environment", "roost-chat", "--message", "Hello")
    two = [said("create", "--name", "twin", *with_it).strip() for _ in range(2)]
    for words, complaint in (
        (["show", "twin"], "roost: 2 deployments are called 'twin'\nhint: Give an id: depl_"),
        (["show", "nobody"], "roost: there is no deployment 'nobody'\nhint: `roost deployment ls`"),
        (["edit", two[0]], "roost: say what to change\nhint: "),
        (["edit", two[0], "--timezone", "UTC"], "roost: --timezone is for a schedule: give one"),
        (["edit", two[0], "--cron", "@daily"], "roost: schedule.expression: "),
        (["edit", two[0], "--agent", "nobody"], "roost: there is no agent 'nobody'"),
        (["create", "--name", "x", *with_it[:4]], "roost: initial_events: "),
        (["runs", two[0], "--state", "gone"], "roost: state: "),
    ):
        assert said(*words, code=1).startswith(complaint), words
    for each in two:
        said("archive", each)
    assert "is archived and runs no more" in said("run", two[0], code=1)


def test_a_pool_is_made_used_and_deleted(
    said: Callable[..., str], server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = partial(said, "pool")
    address = said("create", "mine", "--cooldown", "60", "--ready", "0").strip()
    assert address == f"{server.url}/roost/v1/pools/mine"
    assert said("run", "mine", "x = 20\nprint('out')\nx + 1") == "out\n21\n"
    assert said("run", "mine", "x") == "20\n"
    assert "name 'x' is not defined" in said("run", "mine", "x", "--id", "other", code=1)
    assert said("run", "mine", "echo $((6 * 7))", "--shell") == "42\n"
    assert said("run", "mine", "exit 3", "--shell", "--json", code=1, out=True).count('"3"') == 1
    monkeypatch.setattr("sys.stdin", io.StringIO("x + 2"))
    assert said("run", "mine") == "22\n"
    (tmp_path / "a.txt").write_text("hello")
    up = said("upload", "mine", str(tmp_path / "a.txt"), "--as", "sub/b c.txt")
    assert up == "/mnt/data/sub/b c.txt\n"
    listed = said("files", "mine").splitlines()
    assert [line.split("  ")[0] for line in listed[1:]] == ["sub/b c.txt"]
    assert json.loads(said("files", "mine", "--json"))[0]["name"] == "sub"
    got = tmp_path / "got"
    assert said("download", "mine", "sub/b c.txt", "-o", str(got)) == f"{got}\n"
    assert got.read_text() == "hello"
    assert "already" in said("download", "mine", "sub/b c.txt", "-o", str(got), code=1)
    assert "absent" in said("download", "mine", "absent", "-o", f"{got}2", code=1)
    assert "mine" in said("ls")
    shown = said("show", "mine")
    assert "cli" in shown and "other" in shown
    assert json.loads(said("show", "mine", "--json"))["cooldown_seconds"] == 60
    for words, complaint in (
        (("create", "mine"), "mine"),
        (("create", "a/b"), "name:"),
        (("create", "c", "--environment", "none"), "no environment"),
        (("create", "c", "--ready", "21"), "ready_sessions"),
        (("run", "absent", "1"), "absent"),
        (("run", "mine", "1", "--timeout", "221"), "timeoutInSeconds"),
        (("run", "mine", "1", "--id", ""), "identifier"),
        (("upload", "mine", str(tmp_path / "none")), "no file"),
        (("rm", "absent"), "absent"),
    ):
        assert complaint in said(*words, code=1), words
    assert said("rm", "mine") == "deleted mine\n"
    assert "mine" not in said("ls", "--json")
