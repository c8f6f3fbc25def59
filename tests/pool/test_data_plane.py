"""Pools as clients of Azure's dynamic sessions use them, in both generations of that API."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from tests.pool.pool_server import NEW, OLD, PoolClient, make_pool

from roost.testing.live import LiveServer

LIMIT = 300.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, databases: None) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("pool") / "data", ROOST_MAX_LIVE="50") as server:
        make_pool(server, "p")
        yield server


@pytest.fixture
def pool(server: LiveServer) -> PoolClient:
    return PoolClient(server, server.key, "p", f"id {uuid4().hex} é")


def test_variables_live_on_and_results_come_in_the_newer_shape(pool: PoolClient) -> None:
    pool.run("x = 20")
    told = pool.run("print('out')\nx + 1")
    assert told["status"] == "Succeeded"
    assert (told["identifier"], told["executionType"]) == (pool.identifier, "synchronous")
    assert told["result"]["stdout"] == "out\n"
    assert (told["result"]["stderr"], told["result"]["executionResult"]) == ("", 21)
    assert told["result"]["executionTimeInMilliseconds"] >= 0


@pytest.mark.parametrize("version", [OLD, None])
@pytest.mark.parametrize("is_wrapped", [True, False])
def test_the_older_shape_is_served_with_and_without_a_version(
    pool: PoolClient, version: str | None, is_wrapped: bool
) -> None:
    fields = {"codeInputType": "Inline", "executionType": "Synchronous", "code": "1+1"}
    body = {"properties": fields} if is_wrapped else fields
    answer = pool.ask("POST", "code/execute", version, json=body)
    told = answer.json()["properties"]
    assert answer.status_code == 200
    assert (told["status"], told["result"], told["stdout"], told["stderr"]) == (
        "Success",
        2,
        "",
        "",
    )


def test_the_identifier_can_be_in_a_header_or_in_the_body(pool: PoolClient) -> None:
    pool.run("x = 7")
    name = f"plain-{uuid4().hex}"
    for more in ({"headers": {"Identifier": name}}, {}):
        body = {"properties": {"code": "x = 7", "identifier": name}}
        url = f"{pool.base}/code/execute"
        told = pool.send("POST", url, json=body, **more).json()["properties"]
        assert told["status"] == "Success"
    assert pool.ask("POST", "code/execute", None, json={"code": "x"}, params={}).json()


def test_executions_are_counted(server: LiveServer, pool: PoolClient) -> None:
    def count(kind: str, outcome: str) -> float:
        name = f'roost_pool_executions_total{{kind="{kind}",outcome="{outcome}"}} '
        text = httpx2.get(f"{server.url}/metrics", verify=False).text
        return sum(float(each.split()[1]) for each in text.splitlines() if each.startswith(name))

    before = count("python", "error"), count("exec", "ok")
    pool.run("1/0")
    pool.ask("POST", "executions", json={"execCommandAndArgs": ["true"]})
    assert (count("python", "error"), count("exec", "ok")) == (before[0] + 1, before[1] + 1)


def test_errors_have_a_traceback_and_are_answered_with_200(pool: PoolClient) -> None:
    told = pool.run("1/0")
    assert (told["status"], told["error"]["code"]) == ("Failed", "ZeroDivisionError")
    assert "ZeroDivisionError: division by zero" in told["result"]["stderr"]
    old = pool.ask("POST", "code/execute", OLD, json={"properties": {"code": "1/0"}}).json()
    assert old["properties"]["status"] == "Failure"
    assert old["properties"]["result"] == ""


def test_a_limit_of_time_ends_the_code_and_not_the_variables(pool: PoolClient) -> None:
    pool.run("x = 3")
    told = pool.run("while True: pass", timeoutInSeconds=1)
    assert told["status"] == "Failed"
    assert (
        "Request timed out waiting for code execution to complete after 1 seconds"
        in (told["result"]["stderr"])
    )
    assert pool.value("x") == 3


def test_an_interpreter_that_ends_is_said_and_files_stay(pool: PoolClient) -> None:
    pool.run("x = 3\nopen('/mnt/data/kept', 'w').write('a')")
    told = pool.run("import os\nos._exit(1)")
    assert (told["status"], told["result"]["stateLost"]) == ("Failed", True)
    assert "Kernel restarted" in told["result"]["stderr"]
    assert pool.value("'x' in globals(), open('/mnt/data/kept').read()") == "(False, 'a')"


def test_commands_of_the_shell_have_their_exit_code_as_the_status(pool: PoolClient) -> None:
    answer = pool.ask("POST", "executions", json={"shellCommand": "echo out; echo err >&2; exit 3"})
    told = answer.json()
    assert (told["status"], told["result"]["stdout"], told["result"]["stderr"]) == (
        *("3", "out\n"),
        "err\n",
    )
    run = pool.ask("POST", "executions", json={"execCommandAndArgs": ["echo", "a  b"]}).json()
    assert (run["status"], run["result"]["stdout"]) == ("0", "a  b\n")


def test_an_execution_in_the_background_is_asked_for_later(pool: PoolClient) -> None:
    body = {"code": "import time\ntime.sleep(0.5)\n5", "executionType": "asynchronous"}
    begun = pool.ask("POST", "executions", json=body)
    assert (begun.status_code, begun.json()["status"]) == (202, "Running")
    where = begun.headers["operation-location"]
    told = _until(lambda: pool.send("GET", where).json(), lambda told: told["status"] != "Running")
    assert (told["status"], told["result"]["executionResult"]) == ("Succeeded", 5)
    missing = pool.ask("GET", "executions/unknown")
    assert (missing.status_code, missing.headers["x-ms-error-code"]) == (404, "NotFound")


def test_an_operation_id_that_is_sent_again_is_not_run_again(pool: PoolClient) -> None:
    body = {"code": "n = globals().get('n', 0) + 1\nn"}
    for _ in range(3):
        told = pool.ask("POST", "executions", json=body, headers={"operation-id": "op-1"}).json()
        assert (told["id"], told["result"]["executionResult"]) == ("op-1", 1)
    other = pool.ask("POST", "executions", json={"code": "2"}, headers={"operation-id": "op-1"})
    assert other.status_code == 409
    assert pool.value("n") == 1


def test_calls_on_one_identifier_are_run_one_after_the_other(pool: PoolClient) -> None:
    pool.run("seen = []")
    code = "seen.append('in')\nimport time\ntime.sleep(0.05)\nseen.append('out')"
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(pool.run, [code] * 8))
    assert pool.value("seen == ['in', 'out'] * 8") is True


def test_identifiers_do_not_see_each_other(server: LiveServer, pool: PoolClient) -> None:
    other = PoolClient(server, server.key, "p", f"other-{uuid4().hex}")
    pool.run("x = 1\nopen('mine', 'w').write('a')")
    assert other.value("'x' in globals()") is False
    assert other.ask("GET", "files").json() == {"value": []}


def test_files_are_uploaded_listed_downloaded_and_deleted(pool: PoolClient) -> None:
    made = pool.ask("POST", "files", files={"file": ("a b.txt", b"hello")}).json()
    assert (made["name"], made["sizeInBytes"], made["type"]) == ("a b.txt", 5, "file")
    assert pool.value("open('/mnt/data/a b.txt').read()") == "hello"
    pool.run("import os\nos.makedirs('sub')\nopen('sub/x', 'w').write('deep')")
    flat = {each["name"]: each["type"] for each in pool.ask("GET", "files").json()["value"]}
    assert flat == {"a b.txt": "file", "sub": "directory"}
    every = pool.ask("GET", "files", params={"recursive": "true"}).json()["value"]
    assert {(each["directory"], each["name"]) for each in every} == {
        (".", "a b.txt"),
        (".", "sub"),
        ("sub", "x"),
    }
    assert pool.ask("GET", "files/x/content", params={"path": "/mnt/data/sub"}).content == b"deep"
    assert pool.ask("GET", "files/sub%2Fx/content").content == b"deep"
    assert pool.ask("GET", "files/a b.txt").json()["sizeInBytes"] == 5
    assert pool.ask("DELETE", "files/a b.txt").status_code == 204
    gone = pool.ask("DELETE", "files/a b.txt")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "DeleteFileError")
    assert pool.ask("GET", "files/a b.txt/content").status_code == 404


def test_files_in_the_older_shape_have_absolute_and_nested_names(pool: PoolClient) -> None:
    form = {"file": ("/mnt/data/sub/x.txt", b"one")}
    made = pool.ask("POST", "files/upload", OLD, files=form).json()["value"]
    assert [each["properties"]["filename"] for each in made] == ["sub/x.txt"]
    listed = pool.ask("GET", "files", OLD, params={"path": ""}).json()["value"]
    assert [each["properties"]["filename"] for each in listed] == ["sub/x.txt"]
    assert listed[0]["properties"]["size"] == 3
    assert pool.ask("GET", "files/content/sub/x.txt", OLD).content == b"one"
    assert pool.ask("GET", "/files//content/sub/x.txt/", OLD).content == b"one"


def test_a_form_that_is_called_json_is_understood(pool: PoolClient) -> None:
    form = (
        b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="/mnt/data/a"\r\n\r\nhi\r\n'
        b"--xyz--\r\n"
    )
    headers = {"content-type": "application/json"}
    made = pool.ask("POST", "files/upload", OLD, content=form, headers=headers)
    assert made.json()["value"][0]["properties"]["size"] == 2


def test_an_image_is_the_result(pool: PoolClient) -> None:
    code = "class P:\n    def _repr_png_(self):\n        return b'png'\nP()"
    image = {"type": "image", "format": "png", "base64_data": base64.b64encode(b"png").decode()}
    assert pool.value(code) == image


def test_the_path_of_a_resource_leads_to_the_same_pool(pool: PoolClient) -> None:
    pool.run("x = 9")
    pool.base = "/subscriptions/s/resourceGroups/g/sessionPools/p"
    assert pool.value("x") == 9


def test_a_session_is_described_listed_and_stopped(pool: PoolClient) -> None:
    missing = pool.ask("GET", "session")
    assert (missing.status_code, missing.json()["error"]["code"]) == (
        400,
        "SessionWithIdentifierNotFound",
    )
    pool.run("x = 1\nopen('f', 'w').close()")
    described = pool.ask("GET", "session").json()
    assert described["identifier"] == pool.identifier
    assert described["expireAt"] > described["lastAccessedAt"] >= described["createdAt"]
    listed = pool.ask("GET", "listSessions").json()["sessions"]
    assert pool.identifier in [each["identifier"] for each in listed]
    stopped = pool.ask("POST", ".management/stopSession")
    assert stopped.text == f"Session {pool.identifier} in session pool p stopped."
    assert pool.ask("DELETE", "session").status_code == 400
    assert pool.value("'x' in globals()") is False  # another one under the same name
    assert pool.ask("GET", "files").json() == {"value": []}
    assert pool.ask("DELETE", "session").status_code == 204


def test_stopping_ends_what_runs(pool: PoolClient) -> None:
    body = {"code": "while True: pass", "executionType": "asynchronous"}
    where = pool.ask("POST", "executions", json=body).headers["operation-location"]
    assert pool.ask("DELETE", "session").status_code == 204
    assert pool.send("GET", where).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "nothing", 404),
        ("GET", "code/execute", 405),
        ("PATCH", "files", 405),
        ("POST", "files/x/content", 405),
        ("GET", "files/a%00b", 404),
        ("GET", "files/../../etc/passwd", 404),
        ("GET", "files/%2e%2e%2fx/content", 400),
        ("GET", "files/%7f", 400),
        ("GET", "executions/%00", 404),
        ("GET", "%ff", 404),
        ("POST", "..%2f", 404),
    ],
)
def test_paths_that_lead_nowhere_are_answered_in_that_apis_shape(
    pool: PoolClient, method: str, path: str, status: int
) -> None:
    answer = pool.ask(method, path)
    assert answer.status_code == status, answer.text
    if path != "files/../../etc/passwd":  # which clients make another path of
        assert set(answer.json()["error"]) == {"code", "message"}
        assert answer.headers["x-ms-error-code"] == answer.json()["error"]["code"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"properties": {}},
        {"code": 1},
        {"code": "1", "shellCommand": "ls"},
        {"code": "1", "timeoutInSeconds": 221},
        {"code": "1", "timeoutInSeconds": "soon"},
        {"code": "1", "timeoutInSeconds": True},
        {"code": "1", "executionType": "later"},
        {"code": "1", "codeInputType": "pickled"},
        {"code": "%", "codeInputType": "inlineBase64"},
        {"code": "\0"},
        [],
    ],
)
def test_bodies_that_ask_for_nothing_are_refused(pool: PoolClient, body: Any) -> None:
    answer = pool.ask("POST", "executions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "request_of", "status"),
    [
        ("files", {"content": b"no form"}, 400),
        ("files", {"files": {"other": ("a", b"")}}, 400),
        ("files", {"files": {"file": ("../a", b"")}}, 400),
        ("files", {"files": {"file": ("a", b"")}, "params": {"path": "/etc/.."}}, 400),
        ("files", {"files": [("file", (f"f{n}", b"")) for n in range(21)]}, 400),
        ("files/upload", {"files": {"file": ("/", b"")}}, 400),
        ("executions", {"content": b"{"}, 400),
        ("executions", {"json": {"code": "1", "outputStreamsMaxLength": -1}}, 400),
        ("executions", {"json": {"code": "1", "outputStreamsMaxLength": 2**30}}, 400),
        ("executions", {"json": {"execCommandAndArgs": "ls"}}, 400),
        ("executions", {"json": {"execCommandAndArgs": ["ls", 1]}}, 400),
        ("executions", {"json": {"code": "1"}, "headers": {"operation-id": "a b"}}, 400),
        ("executions", {"json": {"code": "1"}, "params": {"identifier": ""}}, 400),
        (".management/getSession", {"json": {}}, 400),
        (".management/stopSession", {"json": {}}, 400),
        ("mcp", {"content": b"[]"}, 400),
    ],
)
def test_what_cannot_be_done_is_refused_in_that_apis_shape(
    pool: PoolClient, path: str, request_of: dict[str, Any], status: int
) -> None:
    answer = pool.ask("POST", path, **request_of)
    assert answer.status_code == status, answer.text
    told = answer.json()["error"]
    assert set(told) == {"code", "message"} and told["message"]
    assert answer.headers["x-ms-error-code"] == told["code"]


def test_output_is_cut_where_it_is_asked_to_be(pool: PoolClient) -> None:
    told = pool.run("print('x' * 100)\n7", outputStreamsMaxLength=10)["result"]
    assert (told["stdout"], told["truncated"]) == ("x" * 10, ["stdout"])
    assert (told["stderr"], told["executionResult"]) == ("", 7)
    whole = pool.run("print('x' * (1 << 20))")["result"]
    assert (len(whole["stdout"]), whole["truncated"]) == (1 << 20, ["stdout"])


def test_requests_without_what_they_need_are_refused(server: LiveServer, pool: PoolClient) -> None:
    assert pool.ask("GET", "files", "yesterday").status_code == 400
    pool.identifier = ""
    assert pool.ask("GET", "files").status_code == 400
    pool.identifier = "a\0b"
    assert pool.ask("GET", "files").status_code == 400
    pool.identifier = "x" * 257
    assert pool.ask("GET", "files").status_code == 400
    pool.identifier = "x"
    pool.base = "/roost/v1/pools/absent"
    assert pool.ask("GET", "files").status_code == 404
    url = f"{server.url}/roost/v1/pools/p/files?identifier=x"
    nobody = httpx2.get(url, verify=False)
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (401, "Unauthorized")


def test_a_token_of_the_gateway_opens_pools(server: LiveServer, pool: PoolClient) -> None:
    token = httpx2.get(
        f"{server.url}/auth/ws-token", headers={"x-api-key": server.key}, verify=False
    ).json()["token"]
    assert PoolClient(server, token, "p", pool.identifier).value("1+1") == 2
    refused = PoolClient(server, f"{token}x", "p", "x").ask("GET", "files")
    assert refused.status_code == 401


def test_tenants_and_keys_have_identifiers_of_their_own(
    server: LiveServer, pool: PoolClient
) -> None:
    admin = {"x-api-key": server.key}

    def key_of(**fields: Any) -> str:
        body = {"name": uuid4().hex, **fields}
        made = httpx2.post(f"{server.url}/roost/v1/keys", headers=admin, json=body, verify=False)
        assert made.status_code == 200, made.text
        return str(made.json()["secret"])

    pool.run("x = 1")
    elsewhere = key_of(tenant=f"t-{uuid4().hex}")
    assert (
        PoolClient(server, elsewhere, "p", pool.identifier).ask("GET", "files").status_code == 404
    )
    make_pool(server, "p", elsewhere)
    assert PoolClient(server, elsewhere, "p", pool.identifier).value("'x' in globals()") is False


def test_a_pool_that_is_full_says_so(server: LiveServer) -> None:
    make_pool(server, "small", max_sessions=1)
    first = PoolClient(server, server.key, "small", "one")
    assert first.value("1") == 1
    full = PoolClient(server, server.key, "small", "two").ask(
        "POST", "executions", json={"code": "1"}
    )
    assert (full.status_code, full.json()["error"]["code"]) == (429, "TooManyRequests")
    assert first.ask("DELETE", "session").status_code == 204
    assert PoolClient(server, server.key, "small", "two").value("1") == 1


def test_an_identifier_cools_down_and_is_let_go(server: LiveServer) -> None:
    make_pool(server, "quick", cooldown_seconds=1)
    pool = PoolClient(server, server.key, "quick", "one")
    pool.run("x = 1\nopen('f', 'w').close()")
    _until(lambda: pool.ask("GET", "session").status_code, lambda status: status == 400)
    assert pool.value("'x' in globals()") is False


_BEGAN = (
    "ticks = int(open('/proc/self/stat').read().rsplit(')')[1].split()[19])\n"
    "import os, time\n"
    "up = float(open('/proc/uptime').read().split()[0])\n"
    "time.time() - up + ticks / os.sysconf('SC_CLK_TCK')"
)
"""When the interpreter was started."""


def test_what_is_kept_ready_is_for_one_identifier_only(server: LiveServer) -> None:
    make_pool(server, "ready", ready_sessions=1)
    for n in range(3):
        _until(lambda: _prestarted(server), lambda count: count == 1)
        pool, asked = PoolClient(server, server.key, "ready", f"id{n}"), time.time()
        assert pool.value(_BEGAN) < asked  # it was there before
        assert pool.value("'mine' in globals()") is False
        assert pool.ask("GET", "files").json() == {"value": []}
        assert pool.value("__import__('glob').glob('/tmp/*')") == "[]"
        pool.run("mine = 1\nfor place in '/mnt/data/f', '/tmp/f': open(place, 'w').close()")
        if n == 0:
            assert pool.ask("DELETE", "session").status_code == 204
    assert pool.value("mine") == 1
    url = f"{server.url}/roost/v1/pools/ready"
    headers = {"x-api-key": server.key}
    few = httpx2.post(url, headers=headers, json={"ready_sessions": 0}, verify=False)
    assert few.json()["ready_sessions"] == 0
    _until(lambda: _prestarted(server), lambda count: count == 0)
    many = httpx2.post(url, headers=headers, json={"ready_sessions": 21}, verify=False)
    assert many.status_code == 400


def _prestarted(server: LiveServer) -> float:
    text = httpx2.get(f"{server.url}/metrics", verify=False).text
    [line] = [each for each in text.splitlines() if each.startswith("roost_prestarted_agents ")]
    return float(line.split()[1])


def test_pools_are_created_changed_listed_and_deleted(server: LiveServer) -> None:
    make_pool(server, "own", cooldown_seconds=60)
    http = httpx2.Client(base_url=server.url, headers={"x-api-key": server.key}, verify=False)
    with http:
        url = "/roost/v1/pools/own"
        made = http.get(url).json()
        assert (made["type"], made["cooldown_seconds"], made["max_sessions"]) == ("pool", 60, 100)
        changed = http.post(url, json={"cooldown_seconds": 90, "max_alive_seconds": 600}).json()
        assert (changed["cooldown_seconds"], changed["max_alive_seconds"]) == (90, 600)
        assert http.post(url, json={"cooldown_seconds": 0}).status_code == 400
        assert "own" in [each["name"] for each in http.get("/roost/v1/pools").json()["data"]]
        again = {"name": "own", "environment_id": made["environment_id"]}
        assert http.post("/roost/v1/pools", json=again).status_code == 409
        bad = {"name": "a/b", "environment_id": made["environment_id"]}
        assert http.post("/roost/v1/pools", json=bad).status_code == 400
        PoolClient(server, server.key, "own", "x").run("1")
        assert http.delete(url).json()["type"] == "pool_deleted"
        assert http.get(url).status_code == 404
        assert PoolClient(server, server.key, "own", "x").ask("GET", "files").status_code == 404


def test_agents_use_a_pool_by_mcp(server: LiveServer, pool: PoolClient) -> None:
    def rpc(method: str, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return pool.send("POST", f"{pool.base}/mcp", json=body).json()

    def call(tool: str, /, **arguments: Any) -> Any:
        given = {"session": pool.identifier, **arguments}
        return rpc("tools/call", name=tool, arguments=given)["result"]

    assert (
        rpc("initialize", protocolVersion="2025-06-18")["result"]["protocolVersion"] == "2025-06-18"
    )
    tools = rpc("tools/list")["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["run_code", "upload", "download"]
    call("upload", name="a.txt", text="é")
    told = call("run_code", code="open('a.txt').read() * 2")
    assert (told["content"], told["isError"]) == ([{"type": "text", "text": "éé"}], False)
    assert call("run_code", code="1/0")["isError"] is True
    assert call("download", name="a.txt")["content"][0]["text"] == "é"
    call("upload", name="b", base64=base64.b64encode(b"\xff\0").decode())
    resource = call("download", name="/mnt/data/b")["content"][0]["resource"]
    assert base64.b64decode(resource["blob"]) == b"\xff\0"
    for bad in ({"name": "absent"}, {"name": "../x"}, {"name": 1}):
        assert call("download", **bad)["isError"] is True
    assert rpc("tools/call", name="launch", arguments={})["error"]["code"] == -32602
    assert rpc("resources/list")["error"]["code"] == -32601
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert pool.send("POST", f"{pool.base}/mcp", json=note).status_code == 202


async def test_the_official_client_of_mcp_uses_a_pool(server: LiveServer, pool: PoolClient) -> None:
    url, headers = f"{server.url}{pool.base}/mcp", {"x-ms-apikey": server.key}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=300, verify=False) as http,
        streamable_http_client(url, http_client=http) as (reads, writes, *_),
        ClientSession(reads, writes) as client,
    ):
        met = await client.initialize()
        assert met.server_info.name == "roost-pool"
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["run_code", "upload", "download"]

        async def call(tool: str, **given: Any) -> Any:
            return await client.call_tool(tool, {"session": pool.identifier, **given})

        await call("upload", name="a.txt", text="é")
        told = await call("run_code", code="x = open('a.txt').read()\nprint('out')\nx * 2")
        assert [each.text for each in told.content] == ["out\n", "éé"]
        assert (told.is_error, told.structured_content["result"]) == (False, "éé")
        assert (await call("run_code", code="x")).content[0].text == "é"
        failed = await call("run_code", code="1/0")
        assert failed.is_error and "ZeroDivisionError" in failed.content[0].text
        picture = "class P:\n    def _repr_png_(self):\n        return b'png'\nP()"
        [image] = (await call("run_code", code=picture)).content
        assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", b"png")
        assert (await call("download", name="a.txt")).content[0].text == "é"
        await call("upload", name="b", base64=base64.b64encode(b"\xff\0").decode())
        [raw] = (await call("download", name="b")).content
        assert base64.b64decode(raw.resource.blob) == b"\xff\0"


def test_a_killed_server_aborts_what_ran_and_keeps_the_files(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data") as server:
        make_pool(server, "p")
        pool = PoolClient(server, server.key, "p", "x")
        pool.run("x = 1\nopen('kept', 'w').write('a')")
        body = {"code": "open('begun', 'a').write('b')\nwhile True: pass"}
        begun = {**body, "executionType": "asynchronous"}
        where = pool.ask("POST", "executions", json=begun, headers={"operation-id": "cut"})
        assert where.status_code == 202
        _until(
            lambda: [each["name"] for each in pool.ask("GET", "files").json()["value"]],
            lambda names: "begun" in names,
        )
        server.kill()
        server.start()
        told = _until(
            lambda: pool.ask("GET", "executions/cut").json(),
            lambda told: told["status"] != "Running",
        )
        assert told["status"] == "Failed"
        assert "Execution aborted" in told["result"]["stderr"]
        after = pool.run("'x' in globals(), open('kept').read(), open('begun').read()")
        assert after["result"]["executionResult"] == "(False, 'a', 'b')"  # it was run once
        assert after["result"]["stateLost"] is True
        assert "variables of earlier executions are lost" in after["result"]["stderr"]
        assert "stateLost" not in pool.run("1")["result"]


def _until(look: Any, holds: Any) -> Any:
    deadline = time.monotonic() + LIMIT
    while not holds(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_versions_choose_the_shape_of_listings(pool: PoolClient) -> None:
    pool.run("open('f', 'w').close()")
    assert "properties" in pool.ask("GET", "files", OLD).json()["value"][0]
    assert "name" in pool.ask("GET", "files", NEW).json()["value"][0]
