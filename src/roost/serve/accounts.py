"""What sandboxes ask of the model, counted for operators: `/metrics` shows it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from roost.ports.egress import Account

_MOST_MODELS = 50  # a sandbox chooses the names it asks for; each one is a line for ever
_OTHERS = "other"


class ModelMeters:
    """Counters of one server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._models: set[str] = set()
        self._requests = Counter(
            "roost_model_requests",
            "Requests of sandboxes that went to the model, by model and status.",
            ("model", "status"),
            registry=registry,
        )
        self._tokens = Counter(
            "roost_model_tokens",
            "Tokens that they used, by model and kind.",
            ("model", "kind"),
            registry=registry,
        )

    def count(self, account: Account) -> None:
        """A request is over."""
        model = account.model or "none"
        if model not in self._models and len(self._models) >= _MOST_MODELS:
            model = _OTHERS
        self._models.add(model)
        self._requests.labels(model, str(account.status)).inc()
        for kind, tokens in account.usage.for_request().items():
            self._tokens.labels(model, kind.removesuffix("_tokens")).inc(tokens)
