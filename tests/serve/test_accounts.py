"""What operators see of the requests to the model."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from roost.domain.usage import Usage
from roost.ports.egress import Account
from roost.serve.accounts import ModelMeters


def account(model: str) -> Account:
    return Account(session_id="s", model=model, usage=Usage(2, 3), status=200, seconds=0.1)


def test_a_sandbox_that_makes_up_names_of_models_does_not_fill_the_metrics():
    registry = CollectorRegistry()
    meters = ModelMeters(registry)
    for n in range(200):
        meters.count(account(f"model-{n}"))
    meters.count(account("model-0"))

    def requests(model: str) -> float | None:
        labels = {"model": model, "status": "200"}
        return registry.get_sample_value("roost_model_requests_total", labels)

    assert (requests("model-0"), requests("other"), requests("model-199")) == (2, 150, None)
    labels = {"model": "model-0", "kind": "output"}
    assert registry.get_sample_value("roost_model_tokens_total", labels) == 6
