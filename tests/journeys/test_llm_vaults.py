"""Sessions that bring the model's account: the right key at the right place, by the right harness.

The server shaped like Anthropic's is asked by real Claude Code, and that shaped like OpenAI's by real Codex. A
harness of a package is asked for by a vault as well: a program in a real sandbox that asks what its variables name.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from tests.harnesses.codex_session import installed_codex, run
from tests.journeys.chat import Chat, printed, said, script, serving

from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel

OPERATORS = "sk-operators-0123456789-0123456789"
MINE, NEXT = "sk-mine-0123456789-0123456789", "sk-next-0123456789-0123456789"

ASKER = '''
from contextlib import asynccontextmanager

from roost.ports.drafts import new_draft
from roost.ports.harness import Emit, TurnEnd
from roost.ports.harness_profile import Abilities, HarnessProfile

ASK = """
import json, os, sys, urllib.request
body = {"model": sys.argv[1], "input": sys.argv[2]}
key = os.environ["OPENAI_API_KEY"]
headers = {"content-type": "application/json", "authorization": "Bearer " + key}
url = os.environ["OPENAI_BASE_URL"] + "/responses"
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
answer = json.load(urllib.request.urlopen(request))
print(key, answer["output"][0]["content"][0]["text"])
"""


class Asker:
    name = "asker"
    profile = HarnessProfile(
        abilities=Abilities(budget=True), needs_sandbox=True, upstream="openai"
    )
    mounts = ()

    def check(self):
        return "1.0"

    def models(self, agent):
        return [agent["model"]["id"]]

    @asynccontextmanager
    async def open(self, brief):
        yield Conversation(brief)


class Conversation:
    def __init__(self, brief):
        self._brief = brief

    async def turn(self, inputs, *, again):
        model = self._brief.session.spec.agent["model"]["id"]
        for entry in inputs:
            asked = entry.fields["content"][0]["text"]
            process = await self._brief.sandbox.spawn(["python3", "-c", ASK, model, asked])
            text = b""
            while data := await process.receive():
                text += data
            said = text.decode() or process.errors().decode()[-500:]
            yield Emit([new_draft("agent.message", content=[{"type": "text", "text": said}])])
        yield TurnEnd({"type": "end_turn"})

    async def up(self):
        return True

    async def interrupt(self):
        pass


def make(context):
    return [Asker()]
'''


@pytest.fixture
def site(tmp_path: Path) -> str:
    package, about = tmp_path / "site" / "asker", tmp_path / "site" / "asker-1.0.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    (package / "__init__.py").write_text(ASKER)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: asker\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[roost.harnesses]\nasker = asker:make\n")
    return str(tmp_path / "site")


def vault(client: anthropic.Anthropic, key: str, **metadata: str) -> tuple[str, str]:
    """An LLM vault with a key in it: its id, and its credential's."""
    said = {f"roost.{name}": value for name, value in metadata.items()}
    made = client.beta.vaults.create(display_name="mine", metadata={"roost.role": "llm", **said})
    auth: Any = {"type": "static_bearer", "token": key}
    return made.id, client.beta.vaults.credentials.create(made.id, auth=auth).id


def session(chat: Chat, vault_id: str, model: str | None = None) -> Chat:
    """Another session of the same agent, with this vault."""
    agent: Any = chat.session.agent.id
    if model is not None:
        agent = {"type": "agent_with_overrides", "id": agent, "model": model}
    other = chat.another()
    other.session = chat.client.beta.sessions.create(
        agent=agent, environment_id=chat.session.environment_id, vault_ids=[vault_id]
    )
    return other


def keys(model: ScriptedModel) -> list[tuple[str, str | None, str | None]]:
    """Where each request came in, and with which key in which header, once for each in a row."""
    found: list[tuple[str, str | None, str | None]] = []
    for seen in list(model.requests):
        one = seen.path, seen.headers.get("x-api-key"), seen.headers.get("authorization")
        if seen.method == "POST" and one not in found[-1:]:
            found.append(one)
    return found


def test_each_session_asks_its_own_server_with_its_own_key(tmp_path: Path, site: str):
    operators, mine, gpt = ScriptedModel(), ScriptedModel(), ScriptedModel()
    with serving(operators) as url, serving(mine) as mine_url, serving(gpt) as gpt_url:
        environ = {
            "ANTHROPIC_API_KEY": OPERATORS,
            "ANTHROPIC_BASE_URL": url,
            "ROOST_EGRESS_NETWORKS": "127.0.0.0/8",
            "ROOST_BUDGET_DOLLARS": "0",
            "ROOST_PRESTART": "1",
            "PYTHONPATH": site,
        }
        with LiveServer(tmp_path / "data", **environ) as server:
            usual = Chat(server)
            mine_id, credential_id = vault(usual.client, MINE, engine="claude", base_url=mine_url)
            gpt_id, _ = vault(usual.client, NEXT, engine="asker", base_url=f"{gpt_url}/v1")
            own, other = session(usual, mine_id), session(usual, gpt_id, "gpt-9")
            assert [each.fields()["harness"] for each in (usual, own, other)] == [
                "claude",
                "claude",
                "asker",
            ]
            assert own.session.vault_ids == [mine_id]
            assert said(usual.turn(script({"text": "The operator pays."}))) == [
                "The operator pays."
            ]
            assert said(own.turn(script({"text": "I pay."}))) == ["I pay."]
            [told] = said(other.turn(script({"text": "Somebody pays."})))
            assert told.split() == ["placeholder", "Somebody", "pays."]
            assert keys(operators) == [("/v1/messages", OPERATORS, None)]
            assert keys(mine) == [("/v1/messages", None, f"Bearer {MINE}")]
            assert keys(gpt) == [("/v1/responses", None, f"Bearer {NEXT}")]
            metrics = httpx2.get(f"{server.url}/metrics").text
            for model, upstream, asked in (
                ("claude-opus-5-5", "anthropic", operators),
                ("claude-opus-5-5", "vault", mine),
                ("gpt-9", "vault", gpt),
            ):
                labels = f'model="{model}",status="200",upstream="{upstream}"'
                count = sum(seen.method == "POST" for seen in asked.requests)
                assert f"roost_model_requests_total{{{labels}}} {count}.0" in metrics
            _check_rotation(own, mine, mine_id, credential_id)
            assert keys(operators) == [("/v1/messages", OPERATORS, None)], "never with another's"


def _check_rotation(own: Chat, mine: ScriptedModel, vault_id: str, credential_id: str) -> None:
    """A key that is replaced reaches the session that runs; one that is archived is replaced by none."""
    credentials = own.client.beta.vaults.credentials
    auth: Any = {"type": "static_bearer", "token": NEXT}
    credentials.update(credential_id, vault_id=vault_id, auth=auth)
    wait = {"text": "Later.", "delay": 0}
    until = time.monotonic() + 60  # what was read is used for some seconds
    while time.monotonic() < until:
        own.turn(script(wait))
        if keys(mine)[-1] == ("/v1/messages", None, f"Bearer {NEXT}"):
            break
    else:
        raise AssertionError(keys(mine))
    credentials.archive(credential_id, vault_id=vault_id)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        events = own.turn(script(wait))
        if not said(events):
            break
    asked = len(mine.requests)
    events = own.turn(script(wait))
    assert said(events) == []
    assert any("has no key" in str(each.error) for each in events if each.type == "session.error")
    assert len(mine.requests) == asked
    credentials.create(vault_id, auth={"type": "static_bearer", "token": MINE})  # type: ignore[typeddict-item]
    assert said(own.turn(script({"text": "Paid again."}))) == ["Paid again."]


def test_a_vault_makes_it_codex_beside_sessions_on_the_operators_account(tmp_path: Path):
    installed_codex()
    operators, mine = ScriptedModel(), ScriptedModel()
    with serving(operators) as url, serving(mine) as mine_url:
        served = ["[ours]", f'url = "{url}/v1"', 'dialect = "openai"', 'models = ["gpt-*"]']
        upstreams = tmp_path / "upstreams.toml"
        upstreams.write_text("\n".join([*served, f'key = "{OPERATORS}"']))
        environ = {
            "ANTHROPIC_API_KEY": OPERATORS,
            "ANTHROPIC_BASE_URL": url,
            "ROOST_UPSTREAMS": str(upstreams),
            "ROOST_EGRESS_NETWORKS": "127.0.0.0/8",
        }
        with LiveServer(tmp_path / "data", **environ) as server:
            usual = Chat(server)
            vault_id, _ = vault(usual.client, MINE, engine="codex", base_url=f"{mine_url}/v1")
            own, other = session(usual, vault_id, "gpt-9"), usual.another()
            gpt = {"type": "agent_with_overrides", "id": usual.session.agent.id, "model": "gpt-9"}
            other.session = usual.client.beta.sessions.create(
                agent=gpt,  # type: ignore[arg-type]
                environment_id=usual.session.environment_id,
                extra_body={"harness": "codex"},
            )
            chats = (usual, own, other)
            assert [each.fields()["harness"] for each in chats] == ["claude", "codex", "codex"]
            look = run("env | grep KEY; cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep _KEY")
            events = own.turn(script(look, {"text": "I pay."}))
            assert said(events) == ["I pay."]
            assert set("".join(printed(events)).split()) == {"OPENAI_API_KEY=placeholder"}
            assert keys(mine) == [("/v1/responses", None, f"Bearer {MINE}")]
            assert list(operators.requests) == []
            for chat in (usual, other):
                assert said(chat.turn(script({"text": "The operator pays."}))) == [
                    "The operator pays."
                ]
            assert keys(operators) == [
                ("/v1/messages", OPERATORS, None),
                ("/v1/responses", None, f"Bearer {OPERATORS}"),
            ]
            assert keys(mine) == [("/v1/responses", None, f"Bearer {MINE}")]


def test_a_session_whose_llm_vault_cannot_be_used_is_refused_by_name(tmp_path: Path):
    with LiveServer(tmp_path / "data") as server:
        usual = Chat(server, harness="scripted")
        vaults = {
            engine: vault(usual.client, MINE, engine=engine)[0]
            for engine in ("openai-agents", "scripted", "claude")
        }
        for engine, problem in (
            ("openai-agents", "the engine 'openai-agents' of the LLM vault is not available here"),
            ("scripted", "the engine 'scripted' of the LLM vault cannot use a vault's key here"),
        ):
            with pytest.raises(anthropic.BadRequestError, match=problem):
                session(usual, vaults[engine])
        create: Any = usual.client.beta.sessions.create
        place = {"agent": usual.session.agent.id, "environment_id": usual.session.environment_id}
        with pytest.raises(anthropic.BadRequestError, match=r"vault_ids\.1: a session has one LLM"):
            create(**place, vault_ids=[vaults["claude"], vaults["openai-agents"]])
        with pytest.raises(
            anthropic.BadRequestError, match="harness: 'scripted' is not the engine"
        ):
            create(**place, vault_ids=[vaults["claude"]], extra_body={"harness": "scripted"})
        made = create(**place, vault_ids=[vaults["claude"], vaults["claude"]])
        assert made.to_dict()["harness"] == "claude"
        theirs = {
            "sandbox0.managed_agents.role": "llm",
            "sandbox0.managed_agents.engine": "openai-agents",
        }
        other = usual.client.beta.vaults.create(display_name="x", metadata=theirs)
        with pytest.raises(anthropic.BadRequestError, match="the engine 'openai-agents'"):
            session(usual, other.id)
