"""The metrics of the HTTP surface."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Meters:
    """Counters and gauges of one application."""

    def __init__(self, registry: CollectorRegistry, open_streams: Callable[[], int]) -> None:
        self._requests = Counter(
            "roost_http_requests",
            "Requests answered, by operation and status.",
            ("operation", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "roost_http_request_seconds",
            "Time until a response began.",
            ("operation",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.accepted = Counter(
            "roost_inputs_accepted", "Inputs that became durable.", registry=registry
        )
        self._counted: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        streams = Gauge("roost_open_streams", "Event streams open now.", registry=registry)
        streams.set_function(open_streams)

    def answered(self, operation: str, status: int, seconds: float) -> None:
        """Count a response that has begun."""
        counted = self._counted.get((operation, status))
        if counted is None:  # looking a label up costs more than counting
            counted = self._requests.labels(operation, str(status)), self._seconds.labels(operation)
            self._counted[operation, status] = counted
        counted[0].inc()
        counted[1].observe(seconds)
