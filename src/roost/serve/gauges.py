"""What a node counts of its own work, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from roost.core.work.dispatch import Dispatcher
from roost.core.work.prestart import Prestart
from roost.sandboxes.machine import Machine

_Counts = dict[str, tuple[str, Callable[[], float]]]


def count_node(
    registry: CollectorRegistry, dispatcher: Dispatcher, prestart: Prestart, machine: Machine
) -> None:
    """Gauges of one server, and those that carry the node's name."""
    counts: _Counts = {
        "roost_runners": ("Sessions running now.", lambda: dispatcher.busy),
        "roost_warm_agents": (
            "Agents kept started for idle sessions.",
            lambda: dispatcher.running - dispatcher.busy,
        ),
        "roost_starting_agents": ("Agents that are being started.", lambda: dispatcher.starting),
        "roost_prestarted_agents": (
            "Agents prestarted for the next session.",
            lambda: len(prestart),
        ),
        # By the names they had before, for dashboards that know these.
        "roost_waking_agents": ("As roost_starting_agents.", lambda: dispatcher.starting),
        "roost_pooled_agents": ("As roost_prestarted_agents.", lambda: len(prestart)),
    }
    for name, (about, count) in counts.items():
        Gauge(name, about, registry=registry).set_function(count)
    _count_by_name(registry, dispatcher, machine)


def _count_by_name(registry: CollectorRegistry, dispatcher: Dispatcher, machine: Machine) -> None:
    said = dispatcher.member.about()
    info = Gauge("roost_node_info", "This node.", ("node", "id", "version"), registry=registry)
    info.labels(said.name, dispatcher.node, said.version).set(1)
    counts: _Counts = {
        "roost_node_sessions": ("Sessions it holds the lease of.", lambda: dispatcher.running),
        "roost_node_sessions_at_work": ("Of these, running.", lambda: dispatcher.busy),
        "roost_node_sessions_most": ("How many may run at once.", lambda: said.most),
        "roost_node_room": ("How many more it would claim now.", lambda: dispatcher.room),
        "roost_node_draining": (
            "1 while it hands its work over.",
            lambda: dispatcher.member.draining,
        ),
        "roost_node_memory_available_bytes": (
            "Memory that agents may still use.",
            machine.available,
        ),
    }
    for name, (about, count) in counts.items():
        gauge = Gauge(name, about, ("node",), registry=registry).labels(said.name)
        gauge.set_function(count)
