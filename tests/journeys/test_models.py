"""Several servers of models, through the real server: real Claude Code in a real sandbox, and the official client."""

from __future__ import annotations

from pathlib import Path

import anthropic
import httpx2
import pytest
from tests.journeys.chat import Chat, said, script, serving

from roost.builtin_model.app import SeenRequest
from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel

OPUS = "sk-opus-0123456789-0123456789"
LOCAL = "sk-local-0123456789-0123456789"


def test_each_agents_model_is_asked_at_its_own_server_with_that_servers_key(tmp_path: Path):
    opus, local = ScriptedModel(require_key=OPUS), ScriptedModel(require_key=LOCAL)
    with serving(opus) as opus_url, serving(local) as local_url:
        (tmp_path / "local.key").write_text(f"{LOCAL}\n")
        file = tmp_path / "upstreams.toml"
        file.write_text(
            f'[gateway]\nurl = "{opus_url}"\nmodels = ["claude-*"]\nput = "bearer"\nkey = "{OPUS}"\n'
            f'[local]\nurl = "{local_url}"\nmodels = ["small-1", "scripted"]\nkey_file = "local.key"\n'
        )
        with LiveServer(tmp_path / "data", ROOST_UPSTREAMS=str(file)) as server:
            chat = Chat(server)
            assert said(chat.turn(script({"text": "From far."}))) == ["From far."]
            small = chat.client.beta.agents.create(name="small", model="small-1")
            other = Chat(server, agent={"tools": []})
            other.session = other.client.beta.sessions.create(
                agent=small.id,
                environment_id=chat.session.environment_id,
                extra_body={"harness": "scripted"},
            )
            assert said(other.turn(script({"text": "From near."}))) == ["From near."]
            asked = {
                (seen.headers.get("authorization"), seen.body["model"]) for seen in posts(opus)
            }
            assert asked == {(f"Bearer {OPUS}", "claude-opus-5-5")}
            assert [(s.headers.get("x-api-key"), s.body["model"]) for s in posts(local)] == [
                (LOCAL, "small-1")
            ]
            _check_the_list(chat)
            metrics = httpx2.get(f"{server.url}/metrics").text
            assert (
                'roost_model_requests_total{model="claude-opus-5-5",status="200",upstream="gateway"}'
                in metrics
            )
            assert OPUS not in metrics


def _check_the_list(chat: Chat) -> None:
    """What nobody serves is refused where it is named; the rest is listed."""
    client = chat.client
    with pytest.raises(anthropic.BadRequestError, match="'gpt-9' is not served here") as refused:
        client.beta.agents.create(name="lost", model="gpt-9")
    assert refused.value.body["error"]["details"]["error_code"] == "model_not_served"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match="'gpt-9' is not served here"):
        client.beta.sessions.create(
            agent={"type": "agent_with_overrides", "id": chat.session.agent.id, "model": "gpt-9"},
            environment_id=chat.session.environment_id,
        )
    with pytest.raises(anthropic.BadRequestError, match="'gpt-9' is not served here"):
        client.beta.agents.update(chat.session.agent.id, model="gpt-9", version=1)
    listed = [(model.id, model.type) for model in client.models.list(limit=1)]
    assert listed == [("small-1", "model"), ("scripted", "model")]
    assert client.models.retrieve("small-1").display_name == "small-1"
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("gpt-9")


def posts(model: ScriptedModel) -> list[SeenRequest]:
    return [seen for seen in model.requests if seen.method == "POST"]
