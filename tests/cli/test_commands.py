"""Sessions, logs, keys, the doctor, and what a person is told when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import cast

import httpx2
import pytest
from tests.cli.conftest import Roost, Start
from tests.cli.fake import Fake, Json, withdraw

from roost import __version__
from roost.cli import doctor
from roost.cli.client import ApiClient, at, problem
from roost.cli.deployments import print_runs
from roost.cli.follow import Following
from roost.cli.screen import call_of, whole_call
from roost.cli.table import print_table
from roost.config import Settings
from roost.errors import NotFound, QueueFull, RoostError, Unauthenticated, Unavailable

NOBODY = "http://127.0.0.1:9"


def test_help_does_not_load_what_only_commands_need() -> None:
    wanted = "import sys, roost.cli.main; print([m for m in sys.modules if m in %r])"
    heavy = ("httpx2", "pydantic", "uvicorn", "anthropic", "apsw", "starlette")
    loaded = subprocess.run(
        [sys.executable, "-c", wanted % (heavy,)], capture_output=True, text=True, check=True
    )
    assert loaded.stdout == "[]\n"


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_version_is_the_packages(roost: Roost, asked: str) -> None:
    assert roost(asked) == (0, f"roost {__version__}\n", "")


def test_a_server_whose_settings_are_wrong_exits_as_one_that_cannot_start(
    roost: Roost, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = roost("serve", "--port", "99999")
    assert code == 3
    assert err.startswith("roost: ROOST_PORT: ")
    monkeypatch.setenv("ROOST_PROT", "1")
    code, _, err = roost("serve")
    assert code == 3
    assert err.startswith("roost: ROOST_PROT is not a setting; did you mean ROOST_PORT?\n")


def waiting(*calls: Json) -> Fake:
    fake = Fake()
    made = [fake.append(**call) for call in calls]
    fake.rest("requires_action", event_ids=[each["id"] for each in made])
    fake.turn = lambda fake, message: None
    return fake


CALL = {"kind": "agent.tool_use", "name": "bash", "input": {"command": "ls"}}
QUESTION = {
    "kind": "agent.custom_tool_use",
    "name": "AskUserQuestion",
    "input": {"questions": [{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}]},
}


def test_what_a_session_waits_for_is_listed_and_answered(roost: Roost, start: Start) -> None:
    fake = waiting(CALL, QUESTION)
    start(fake)
    code, out, _ = roost("sessions", "answer", "sesn_1")
    assert code == 0
    assert out.splitlines()[1].split(maxsplit=2) == [
        "sevt_1",
        "permission",
        'bash {"command": "ls"}',
    ]
    assert out.splitlines()[2].split(maxsplit=2) == ["sevt_2", "answer", "Which? (A, B)"]
    assert roost("sessions", "answer", "sesn_1", "--allow")[:2] == (0, "answered\n")
    assert (
        roost("sessions", "answer", "sesn_1", "--call", "sevt_1", "--deny", "--why", "no")[0] == 0
    )
    assert roost("sessions", "answer", "sesn_1", "2", "--call", "sevt_2")[0] == 0
    allowed, denied, told = fake.posted
    assert (allowed["tool_use_id"], allowed["result"]) == ("sevt_1", "allow")
    assert (denied["result"], denied["deny_message"]) == ("deny", "no")
    assert json.loads(told["content"][0]["text"]) == {"answers": {"Which?": "B"}}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["yes"], "it waits for permission"),
        (["--allow", "--deny"], "it waits for permission"),
        (["--allow", "--call", "sevt_9"], "the session does not wait for sevt_9"),
        (["--allow", "--call", "sevt_2"], "it waits for an answer: Which? (A, B)"),
        (["3", "--call", "sevt_2"], "there is no choice 3"),
    ],
)
def test_an_answer_that_fits_nothing_is_not_sent(
    roost: Roost, start: Start, arguments: list[str], says: str
) -> None:
    fake = waiting(CALL, QUESTION)
    start(fake)
    code, _, err = roost("sessions", "answer", "sesn_1", *arguments)
    assert code == 1
    assert says in err
    assert fake.posted == []


def test_a_session_that_waits_for_nothing_says_so(roost: Roost, start: Start) -> None:
    start(Fake())
    assert roost("sessions", "answer", "sesn_1")[:2] == (0, "it waits for nothing\n")
    code, _, err = roost("sessions", "answer", "sesn_1", "--allow")
    assert (code, err) == (1, "roost: the session waits for nothing\n")


def test_a_session_is_interrupted(roost: Roost, start: Start) -> None:
    fake = waiting()
    start(fake)
    assert roost("sessions", "interrupt", "sesn_1")[:2] == (0, "interrupted\n")
    assert [event["type"] for event in fake.posted] == ["user.interrupt"]


def test_a_person_is_told_where_a_key_is_and_not_which_header_to_send() -> None:
    error = {"message": "The API key is missing.", "details": {"hint": "Send it as `x-api-key`."}}
    said = problem(httpx2.Response(401, json={"error": error}))
    assert "x-api-key" not in (said.hint or "")
    assert "ROOST_API_KEY" in (said.hint or "")


def test_the_doctor_believes_the_running_server_and_not_its_own_shell(tmp_path: Path) -> None:
    said = {"url": NOBODY, "pid": os.getpid(), "model": "http://model.test"}
    (tmp_path / "server.json").write_text(json.dumps(said))
    assert doctor.model(Settings(data=tmp_path)).level == "ok"
    (tmp_path / "server.json").write_text(json.dumps(said | {"model": "scripted (set a key)"}))
    with_key = Settings(data=tmp_path, anthropic_api_key="k")  # type: ignore[arg-type]
    found = doctor.model(with_key)
    assert (found.level, found.said) == (
        "warn",
        "the running server answers from the scripted model",
    )
    (tmp_path / "server.json").write_text(json.dumps(said | {"pid": 2**22 + 1}))
    assert doctor.model(with_key).level == "ok"


def test_no_server_is_one_line_and_what_to_do(roost: Roost) -> None:
    code, out, err = roost("sessions", "ls", "--url", NOBODY)
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        f"roost: no server at {NOBODY}",
        "hint: Start one with `roost serve` or `make up`, or name another with --url.",
    ]


@pytest.mark.parametrize("url", ["http://h:port", "http://999.1.1.1", "127.0.0.1:8700", "ftp://h"])
def test_an_address_that_is_none_is_one_line_and_what_to_do(url: str) -> None:
    with pytest.raises(Unavailable, match="is not the address of a server") as said:
        ApiClient(url, None).get("/v1/sessions")
    assert "--url" in (said.value.hint or "")


def test_the_servers_error_is_one_line_with_its_hint(roost: Roost, start: Start) -> None:
    start(Fake())
    code, _, err = roost("sessions", "show", "sesn_2")
    assert code == 1
    assert err == "roost: There is no /v1/sessions/sesn_2 here.\nhint: Look again.\n"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, b'{"error": {"message": "Who?"}}', Unauthenticated),
        (502, b"<html>", Unavailable),
        (418, b'{"error": "short"}', RoostError),
        (429, b'{"error": {"details": {"error_code": "queue_full"}}}', QueueFull),
        (405, b'{"error": {"details": {"error_code": "method_not_allowed"}}}', RoostError),
    ],
)
def test_an_answer_that_is_an_error_becomes_one(
    status: int, body: bytes, kind: type[RoostError]
) -> None:
    found = problem(httpx2.Response(status, content=body))
    assert type(found) is kind
    assert found.message in ("Who?", f"the server answered {status}")


def test_an_id_cannot_name_another_path(start: Start) -> None:
    assert at("v1", "sessions", "../agents") == "/v1/sessions/..%2Fagents"
    with ApiClient(start(Fake()), None) as client, pytest.raises(NotFound):
        client.get(at("v1", "sessions", "../agents"))


def test_a_wrong_setting_is_said_by_its_name(roost: Roost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOST_PROT", "8700")
    code, _, err = roost("sessions", "ls")
    assert code == 1
    assert "ROOST_PROT" in err and "docs/settings.md" in err


def test_something_else_that_answers_is_not_taken_for_roost(roost: Roost) -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.handle_request).start()
        code, _, err = roost("sessions", "ls", "--url", f"http://127.0.0.1:{server.server_port}")
    assert code == 1
    assert "not a Roost server" in err


def test_the_key_and_the_address_come_from_the_data_directory(
    roost: Roost, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = start(Fake())
    monkeypatch.delenv("ROOST_URL")
    (tmp_path / "data" / "keys").mkdir(parents=True)
    (tmp_path / "data" / "keys" / "admin.key").write_text("sk-1\n")
    (tmp_path / "data" / "server.json").write_text(json.dumps({"url": url}))
    assert roost("sessions", "ls")[0] == 0


def test_sessions_are_listed_shown_and_removed(roost: Roost, start: Start) -> None:
    fake = Fake()
    trust = {"trust_level": "sandboxed"}
    fake.made["sessions"] = [{"id": "sesn_1", "title": "a"} | trust, {"id": "sesn_2", "title": "b"}]
    start(fake)
    code, out, _ = roost("sessions", "ls")
    assert code == 0
    heading, first, second = out.splitlines()
    assert heading.split() == ["ID", "STATUS", "TRUST", "AGENT", "CREATED", "TITLE"]
    assert first.split()[:4] == ["sesn_1", "idle", "sandboxed", "roost-chat"]
    assert first.split()[4:] == ["2026-01-01", "00:00:01", "a"]
    assert second.startswith("sesn_2")
    listed = json.loads(roost("sessions", "ls", "--all", "--limit", "1", "--json")[1])
    assert [s["id"] for s in listed] == ["sesn_1"]

    shown = roost("sessions", "show", "sesn_1")[1]
    assert "3 in, 4 out" in shown and "roost chat --session sesn_1" in shown
    assert "\x1b" not in shown
    assert json.loads(roost("sessions", "show", "sesn_1", "--json")[1])["id"] == "sesn_1"

    assert roost("sessions", "rm", "sesn_1")[:2] == (0, "deleted sesn_1\n")
    assert json.loads(roost("sessions", "rm", "sesn_1", "--json")[1])["id"] == "sesn_1"


def test_a_log_is_printed_up_to_its_end(roost: Roost, start: Start) -> None:
    fake = Fake()
    start(fake)
    roost("chat", "--once", "Hello")
    _error(fake)
    code, out, _ = roost("logs", "sesn_1")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "(queued)             user.message                  Hello"
    assert [line.split()[2] for line in lines[1:]] == [
        "session.status_running",
        "user.message",
        "agent.message",
        "session.status_idle",
        "agent.tool_use",
        "session.error",
    ]
    as_json = [json.loads(line) for line in roost("logs", "sesn_1", "--json")[1].splitlines()]
    assert as_json[0]["type"] == "user.message"
    assert roost("logs", "sesn_9")[0] == 1


def test_the_log_of_a_session_nobody_spoke_to_is_empty(roost: Roost, start: Start) -> None:
    start(Fake())
    assert roost("logs", "sesn_1") == (0, "", "")


def test_a_followed_log_goes_on_over_breaks_until_the_session_is_deleted(
    roost: Roost, start: Start
) -> None:
    fake = Fake()
    fake.cut_after = [1, 0, 1]
    for _ in range(3):
        fake.append("session.status_running")
    fake.append("session.deleted")
    start(fake)
    code, out, err = roost("logs", "sesn_1", "-f", "--json")
    assert code == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == [
        "sevt_1",
        "sevt_2",
        "sevt_3",
        "sevt_4",
    ]
    assert err.count("reconnecting…") == err.count("connected again") == 3


def test_following_gives_up_after_its_patience() -> None:
    with ApiClient(NOBODY, None) as client:
        log = Following(client, "sesn_1", patience=0.2)
        began = time.monotonic()
        with pytest.raises(Unavailable, match="no server"):
            next(log.events())
    assert time.monotonic() - began < 30


def test_an_error_frame_ends_the_connection_not_the_following(start: Start) -> None:
    fake = Fake()
    losses: list[str] = []
    with ApiClient(start(fake), None) as client:
        log = Following(client, "sesn_1", on_loss=lambda: losses.append("lost"))
        events = log.events()
        fake.break_off = True
        fake.append("session.status_running")
        assert next(events)["type"] == "session.status_running"
    assert losses == ["lost"]


def test_keys_are_made_listed_and_revoked(roost: Roost, start: Start) -> None:
    fake = Fake()
    start(fake)
    assert roost("key", "create", "ci", "--tenant", "acme", "--max-sessions", "5") == (
        0,
        "sk-secret\n",
        "",
    )
    assert fake.keys[0]["limits"] == {"max_sessions": 5}
    assert fake.keys[0]["tenant"] == "acme"
    assert json.loads(roost("key", "create", "b", "--json")[1])["secret"] == "sk-secret"
    assert roost("key", "ls")[1].splitlines()[1].split()[:4] == ["key_1", "ci", "acme", "user"]
    assert len(json.loads(roost("key", "ls", "--json")[1])) == 2
    assert roost("key", "revoke", "key_1")[:2] == (0, "revoked key_1\n")
    assert roost("key", "revoke", "key_1", "--json")[0] == 0


def test_environments_are_made_and_listed_with_keys_for_their_workers(
    roost: Roost, start: Start
) -> None:
    fake = Fake()
    start(fake)
    assert roost("environments", "create", "mine", "--self-hosted")[:2] == (0, "environments_1\n")
    made = json.loads(roost("environments", "create", "here", "--json")[1])
    kinds = [each["config"]["type"] for each in (*fake.made["environments"], made)]
    assert kinds == ["self_hosted", "cloud", "cloud"]
    listed = roost("environments", "ls")[1].splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [
        ["environments_1", "mine", "self_hosted"],
        ["environments_2", "here", "cloud"],
    ]
    assert len(json.loads(roost("environments", "ls", "--json")[1])) == 2
    keys = "environments", "keys"
    assert roost(*keys, "create", "mine", "--name", "rack") == (0, "sk-secret\n", "")
    assert fake.keys[0]["name"] == "rack"
    assert json.loads(roost(*keys, "create", "mine", "--json")[1])["name"] == "worker"
    assert roost(*keys, "ls", "mine")[1].splitlines()[1].split()[:2] == ["key_1", "rack"]
    assert len(json.loads(roost(*keys, "ls", "mine", "--json")[1])) == 2
    assert roost(*keys, "revoke", "mine", "key_1")[:2] == (0, "revoked key_1\n")
    assert roost(*keys, "revoke", "mine", "key_1", "--json")[0] == 0
    code, _, err = roost(*keys, "ls", "nowhere")
    assert (code, "nowhere" in err) == (1, True)


def test_a_worker_without_a_key_says_where_one_comes_from(
    roost: Roost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ANTHROPIC_ENVIRONMENT_KEY", raising=False)
    given = "--environment", "env_1", "--directory", str(tmp_path)
    code, _, err = roost("worker", *given)
    assert code == 1
    assert "roost environments keys create" in err


@pytest.mark.parametrize(
    ("soft", "hard", "level"), [(1024, 65_536, "ok"), (1024, -1, "ok"), (1024, 2048, "warn")]
)
def test_the_doctor_goes_by_the_files_that_a_server_will_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, level: str
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, hard))
    assert doctor.open_files(Settings(data=tmp_path)).level == level


@pytest.fixture
def models() -> Generator[Callable[[int], str]]:
    """Servers that answer every request with such a status, and a list of one model."""
    with ExitStack() as stack:

        def serve(status: int) -> str:
            class Handler(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(b'{"data": [{"id": "claude-x"}]}')

                def log_message(self, *_: object) -> None:
                    pass

            server = stack.enter_context(HTTPServer(("127.0.0.1", 0), Handler))
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            return f"http://127.0.0.1:{server.server_port}"

        yield serve


@pytest.mark.parametrize(
    ("status", "level", "said"),
    [
        (200, "ok", "answers, 1 models"),
        (404, "ok", "it has no list of models"),
        (401, "warn", "it does not take the key"),
        (0, "warn", "it does not answer"),
    ],
)
def test_the_doctor_says_which_upstreams_answer_and_shows_no_key(
    tmp_path: Path, models: Callable[[int], str], status: int, level: str, said: str
) -> None:
    url = models(status) if status else NOBODY
    file = tmp_path / "upstreams.toml"
    (tmp_path / "key").write_text("sk-in-a-file-0123456789\n")
    file.write_text(
        f'[first]\nurl = "{models(200)}"\nmodels = ["*"]\nkey = "sk-in-the-table-0123456789"\n'
        f'[second]\nurl = "{url}"\nmodels = ["*"]\nkey_file = "key"\nput = "bearer"\n'
    )
    found = doctor.upstreams(Settings(data=tmp_path, upstreams=file))
    assert (found.level, f"second at {url}: {said}" in found.said) == (level, True), found
    assert "first at http://127.0.0.1:" in found.said
    assert "sk-in" not in repr(found)


def test_the_doctor_says_what_is_wrong_with_a_file_of_upstreams(tmp_path: Path) -> None:
    file = tmp_path / "upstreams.toml"
    file.write_text('[one]\nurl = "http://x.example"\n')
    found = doctor.upstreams(Settings(data=tmp_path, upstreams=file))
    assert (found.level, "one: Object missing required field `models`" in found.said) == (
        "fail",
        True,
    )


def test_the_doctor_says_which_agent_of_the_file_is_not_there_and_what_is_wrong_with_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "agents.toml"
    file.write_text('[one]\ncommand = ["one"]\n[two]\ncommand = ["/opt/absent/two"]\n')
    found = doctor.harness("acp", Settings(data=tmp_path, agents=file))
    assert (found.level, found.said) == (
        "warn",
        "one not stated; two: /opt/absent/two does not exist",
    )
    assert found.fix == "Install it, or correct the file of ROOST_AGENTS."
    wanted = doctor.harness("acp", Settings(data=tmp_path, agents=file, harness="two"))
    assert wanted.level == "fail"
    file.write_text("[one]\ncommand = []\n")
    broken = doctor.harness("acp", Settings(data=tmp_path, agents=file))
    assert (broken.level, broken.said) == (
        "fail",
        f"ROOST_AGENTS: {file}: one: `command` is empty",
    )
    assert doctor.harness("acp", Settings(data=tmp_path)).said == "none is configured"


def test_the_doctor_finds_a_healthy_machine_healthy(
    roost: Roost, models: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOST_PORT", "0")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789-0123456789")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", models(200))
    code, out, _ = roost("doctor")
    assert code == 0, out
    assert "answers, 1 models" in out
    assert {line.split()[0] for line in out.splitlines()} <= {"ok", "warn", "A", "Run"}
    assert [found["check"] for found in json.loads(roost("doctor", "--json")[1])] == list(
        doctor.CHECKS
    )


def test_the_doctor_says_what_to_do_about_what_does_not_work(
    roost: Roost, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = roost("doctor", "--url", NOBODY)
    assert code == 1
    assert f"no server at {NOBODY}" in out
    assert "Set ANTHROPIC_API_KEY" in out
    start(Fake())
    assert "running and ready" in roost("doctor")[1]


def test_the_doctor_sees_a_data_directory_that_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roost.cli.doctor.os.access", lambda place, mode: False)
    assert doctor.data_directory(settings(data=tmp_path / "data")).level == "fail"


def test_the_doctor_refuses_a_data_directory_on_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/vda rw\n"
        f"2 1 0:5 / {tmp_path} rw,relatime shared:1 - nfs4 host:/x rw\n"
    )
    assert doctor.filesystem_of(tmp_path / "data", mounts) == "nfs4"
    assert doctor.filesystem_of(Path("/elsewhere"), mounts) == "ext4"
    assert doctor.filesystem_of(tmp_path, tmp_path / "absent") == ""
    monkeypatch.setattr(doctor, "filesystem_of", lambda place, mounts: "nfs4")
    assert doctor.data_directory(settings(data=tmp_path)).level == "fail"


def test_the_doctor_tries_the_blob_store(tmp_path: Path) -> None:
    assert doctor.blob_store(settings(data=tmp_path)).level == "ok"
    kept = tmp_path / "kept"
    assert doctor.blob_store(settings(data=tmp_path, blobs_url=f"file://{kept}")).level == "ok"
    assert [path for path in kept.rglob("*") if path.is_file() and path.name != ".lock"] == []
    (tmp_path / "file").touch()
    broken = doctor.blob_store(settings(data=tmp_path, blobs_url=f"file://{tmp_path}/file"))
    assert broken.level == "fail"
    unknown = doctor.blob_store(settings(data=tmp_path, blobs_url="ftp://somewhere"))
    assert (unknown.level, "file:///PATH" in unknown.fix) == ("fail", True)


def test_the_doctor_warns_of_a_slow_disk_and_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_timed_fsync", lambda descriptor: 45.0)
    assert doctor.fsync(settings(data=tmp_path)).level == "warn"
    monkeypatch.setattr("resource.getrlimit", lambda what: (1024, 2048))
    assert "65536" in doctor.open_files(settings()).fix


def test_the_doctor_sees_a_port_that_something_else_has(start: Start) -> None:
    url = start(Fake())
    port = int(url.rpartition(":")[2])
    busy = doctor._port(settings(port=port), url)
    assert (busy.level, busy.fix) == ("fail", "Choose another with --port.")


def test_the_doctor_sees_a_server_that_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.cli.doctor.httpx2.get", lambda *a, **k: httpx2.Response(503))
    assert doctor.server(settings()).level == "fail"


def test_the_doctor_sees_a_clock_that_cannot_be_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.cli.doctor.time.time", lambda: 0.0)
    assert doctor.clock(settings()).level == "fail"


def settings(**given: object) -> Settings:
    return Settings.read({}, **given)


def _error(fake: Fake) -> Json:
    fake.append("agent.tool_use", name="bash", input={"command": "ls"})
    status = {"type": "exhausted"}
    error = {"type": "unknown_error", "message": "no", "retry_status": status}
    return fake.append("session.error", error=error)


def test_a_call_to_be_allowed_is_shown_whole_and_cannot_disguise_itself() -> None:
    command = f"ls {'x' * 200}; rm -rf ~ \x1b[2K\r\u202eallow\x9b"
    shown = whole_call({"name": "Bash", "input": {"command": command}})
    assert "; rm -rf ~" in shown
    assert shown.isprintable()
    assert call_of({"name": "Ba\x1b[2Ksh", "input": {"command": command}}).isprintable()


def test_a_name_in_a_table_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name"], [["a \x1b[31mname"]])
    assert capsys.readouterr().out == "NAME\na [31mname\n"


def test_a_log_says_of_a_message_that_it_was_withdrawn(roost: Roost, start: Start) -> None:
    fake = Fake(withdraw)
    start(fake)
    roost("chat", "--once", "Hello")
    lines = roost("logs", "sesn_1")[1].splitlines()
    [line] = [line for line in lines if "(withdrawn) Hello" in line]
    assert line.split()[2] == "user.message"
    as_json = [json.loads(line) for line in roost("logs", "sesn_1", "--json")[1].splitlines()]
    assert [event["withdrawn_at"] for event in as_json if "withdrawn_at" in event] == ["now"]


def test_runs_say_why_they_have_no_session(capsys: pytest.CaptureFixture[str]) -> None:
    at = "2026-03-05T02:30:00.000001Z"
    usual = {"session_id": None, "error": None, "skipped": None, "created_at": at}
    timed = {**usual, "trigger_context": {"type": "schedule", "scheduled_at": at}}
    error = {"type": "vault_archived_error", "message": "vault vlt_1 is archived"}
    missed = {"reason": "missed", "count": 12, "since": "2026-02-01T02:30:00Z"}
    busy = {"reason": "overlap", "count": 1, "since": None}

    class Client:
        def pages(self, path: str, _: Json) -> list[Json]:
            assert path == "/roost/v1/deployments/depl_1/runs"
            return [
                {**timed, "id": "drun_3", "state": "skipped", "skipped": missed},
                {**timed, "id": "drun_2", "state": "skipped", "skipped": busy},
                {**timed, "id": "drun_1", "state": "failed", "error": error},
            ]

    print_runs(cast("ApiClient", Client()), "depl_1", None, 20, as_json=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "drun_3  2026-03-05 02:30:00  schedule  skipped           "
        "no server ran then; 12 times since 2026-02-01 02:30:00",
        "drun_2  2026-03-05 02:30:00  schedule  skipped           the last run still worked",
        "drun_1  2026-03-05 02:30:00  schedule  failed            "
        "vault_archived_error: vault vlt_1 is archived",
    ]
