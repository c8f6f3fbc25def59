"""What operators see of the requests to the model."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from roost.domain.usage import Usage
from roost.ports.egress import Account
from roost.serve.accounts import ModelMeters


def account(model: str, upstream: str = "anthropic") -> Account:
    return Account(
        session_id="s", model=model, usage=Usage(2, 3), status=200, seconds=0.1, upstream=upstream
    )


def test_a_sandbox_that_makes_up_names_of_models_does_not_fill_the_metrics():
    registry = CollectorRegistry()
    meters = ModelMeters(registry)
    for n in range(200):
        meters.count(account(f"model-{n}"))
    meters.count(account("model-0"))

    def requests(model: str) -> float | None:
        labels = {"model": model, "status": "200", "upstream": "anthropic"}
        return registry.get_sample_value("roost_model_requests_total", labels)

    assert (requests("model-0"), requests("other"), requests("model-199")) == (2, 150, None)
    labels = {"model": "model-0", "kind": "output", "upstream": "anthropic"}
    assert registry.get_sample_value("roost_model_tokens_total", labels) == 6


def test_what_sessions_ask_of_servers_of_their_own_is_counted_apart():
    registry = CollectorRegistry()
    meters = ModelMeters(registry)
    for n in range(200):
        meters.count(account(f"made-up-{n}", "vault"))
    for upstream in ("anthropic", "vault"):
        meters.count(account("claude-x", upstream))

    def requests(model: str, upstream: str) -> float | None:
        labels = {"model": model, "status": "200", "upstream": upstream}
        return registry.get_sample_value("roost_model_requests_total", labels)

    assert requests("claude-x", "anthropic") == 1
    assert (requests("claude-x", "vault"), requests("other", "vault")) == (None, 151)
