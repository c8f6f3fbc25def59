"""What a session is refused because of the server that its model is at; the rest is asked over HTTP (`tests/api`)."""

from __future__ import annotations

from typing import Any

import pytest

from roost.core.sessions.harness_choice import HarnessChoice, KnownHarness
from roost.domain.llm_vault import LlmVault
from roost.domain.upstream import Upstream, Upstreams
from roost.errors import HarnessCannot
from roost.harnesses.messages.harness import PROFILE

UPSTREAMS = [
    Upstream(name="searching", api="anthropic", models=["good"], web_search=True),
    Upstream(name="gateway", api="anthropic"),
]
OWN = LlmVault(engine="messages")
GATEWAY = LlmVault(engine="messages", base_url="https://gateway.example")


def agent(model: str, policy: str, *, by_name: bool, enabled: bool = True) -> dict[str, Any]:
    config = {"enabled": enabled, "permission_policy": {"type": policy}}
    configs = [{"name": "read", **config}, *([{"name": "web_search", **config}] * by_name)]
    toolset = {"type": "agent_toolset_20260401", "default_config": config, "configs": configs}
    return {"model": {"id": model}, "tools": [toolset]}


def check(asked: dict[str, Any], vault: LlmVault | None = None) -> None:
    known = KnownHarness(name="messages", profile=PROFILE, version="1")
    HarnessChoice({"messages": known}, "messages", Upstreams(UPSTREAMS)).check_searches(
        "messages", asked, vault
    )


@pytest.mark.parametrize(("model", "vault"), [("other", None), ("good", GATEWAY)])
def test_a_search_by_its_name_is_refused_where_the_models_server_makes_none(
    model: str, vault: LlmVault | None
) -> None:
    with pytest.raises(HarnessCannot, match=r"^agent\.tools\.0\.configs\.1: the model's server"):
        check(agent(model, "always_allow", by_name=True), vault)
    check(agent(model, "always_allow", by_name=False), vault)
    check(agent(model, "always_allow", by_name=True, enabled=False), vault)


@pytest.mark.parametrize(("model", "vault"), [("good", None), ("other", OWN)])
def test_a_search_that_would_have_to_ask_is_refused(model: str, vault: LlmVault | None) -> None:
    check(agent(model, "always_allow", by_name=True), vault)
    with pytest.raises(HarnessCannot, match=r"configs\.1\.permission_policy: .* cannot ask"):
        check(agent(model, "always_ask", by_name=True), vault)
    check(agent(model, "always_ask", by_name=False), vault)
