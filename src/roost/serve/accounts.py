"""What sandboxes ask of the model, counted for operators: `/metrics` shows it."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client import CollectorRegistry, Counter

from roost.ports.egress import Account

_MOST_MODELS = 50  # a sandbox chooses the names it asks for; each one is a line for ever
_OTHERS = "other"


class ModelMeters:
    """Counters of one server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._models: dict[str, set[str]] = defaultdict(set)
        self._requests = Counter(
            "roost_model_requests",
            "Requests of sandboxes that went to the model, by model, status and upstream.",
            ("model", "status", "upstream"),
            registry=registry,
        )
        self._tokens = Counter(
            "roost_model_tokens",
            "Tokens that they used, by model, kind and upstream.",
            ("model", "kind", "upstream"),
            registry=registry,
        )

    def count(self, account: Account) -> None:
        """A request is over. Models are counted apart for each upstream: what sessions ask of servers of their
        own cannot take the places of the operator's.
        """
        model, upstream = account.model or "none", account.upstream
        known = self._models[upstream]
        if model not in known and len(known) >= _MOST_MODELS:
            model = _OTHERS
        known.add(model)
        self._requests.labels(model, str(account.status), upstream).inc()
        for kind, tokens in account.usage.for_request().items():
            self._tokens.labels(model, kind.removesuffix("_tokens"), upstream).inc(tokens)
