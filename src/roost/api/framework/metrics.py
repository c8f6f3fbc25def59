"""The metrics of the HTTP surface."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LIMITS: Final = [*map(floatToGoString, _SECONDS), "+Inf"]


class Meters:
    """Counters and gauges of one application."""

    def __init__(self, registry: CollectorRegistry, open_streams: Callable[[], int]) -> None:
        self._requests = _Requests()
        self.answered = self._requests.answered
        """Count a response that has begun: its operation, its status, and after how many seconds."""
        self.accepted = self._requests.accepted
        """Count inputs that became durable: how many."""
        registry.register(self._requests)
        streams = Gauge("roost_open_streams", "Event streams open now.", registry=registry)
        streams.set_function(open_streams)


class _Requests(Collector):
    """Counts requests in plain lists, and makes metrics of them when somebody asks: the library's counters
    take a lock for each number, and cost more than the look at a key.
    """

    def __init__(self) -> None:
        self._inputs = _Count()
        self._counts: dict[tuple[str, int], _Count] = {}
        self._seconds: dict[str, _Seconds] = {}

    def accepted(self, number: int) -> None:
        """Count some inputs. Called on the event loop's thread only."""
        self._inputs.number += number

    def answered(self, operation: str, status: int, seconds: float) -> None:
        """Count one. Called on the event loop's thread only."""
        count = self._counts.get((operation, status))
        if count is None:
            count = self._counts[operation, status] = _Count()
        count.number += 1
        taken = self._seconds.get(operation)
        if taken is None:
            taken = self._seconds[operation] = _Seconds()
        taken.numbers[bisect_left(_SECONDS, seconds)] += 1
        taken.sum += seconds

    def describe(self) -> Iterator[Metric]:
        """The metrics, without a value: what nobody has counted yet has a name already."""
        labels = ("operation", "status")
        yield CounterMetricFamily("roost_inputs_accepted", "Inputs that became durable.")
        yield CounterMetricFamily(
            "roost_http_requests", "Requests answered, by operation and status.", labels=labels
        )
        yield HistogramMetricFamily(
            "roost_http_request_seconds", "Time until a response began.", labels=labels[:1]
        )

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        inputs, requests, seconds = self.describe()
        assert isinstance(inputs, CounterMetricFamily)
        assert isinstance(requests, CounterMetricFamily)
        assert isinstance(seconds, HistogramMetricFamily)
        inputs.add_metric([], self._inputs.number, created=self._inputs.since)
        for (operation, status), count in list(self._counts.items()):
            requests.add_metric([operation, str(status)], count.number, created=count.since)
        for operation, taken in list(self._seconds.items()):
            buckets = list(zip(_LIMITS, map(float, accumulate(taken.numbers)), strict=True))
            seconds.add_metric([operation], buckets, taken.sum)
            labels = {"operation": operation}
            seconds.add_sample("roost_http_request_seconds_created", labels, taken.since)
        yield inputs
        yield requests
        yield seconds


class _Count:
    __slots__ = ("number", "since")

    def __init__(self) -> None:
        self.number = 0
        self.since = time.time()


class _Seconds:
    __slots__ = ("numbers", "since", "sum")

    def __init__(self) -> None:
        self.numbers = [0] * len(_LIMITS)
        self.sum = 0.0
        self.since = time.time()
