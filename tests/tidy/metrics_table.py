"""Every metric there is, as ``docs/METRICS.md`` lists them: ``python tests/tidy/metrics_table.py`` prints that page.

Families come from the very registries that are served; nothing is listed by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from kafila_agent.gauges import StatusCollector
from kafila_agent.metrics import AgentMetrics
from kafila_proto import VERSION
from kafila_proto import agent_pb2 as pb
from kafila_rendezvous.circuits import Circuits
from kafila_rendezvous.datagrams import DatagramServer
from kafila_rendezvous.metrics import make_metrics
from kafila_rendezvous.registry import Registry

PAGE = Path(__file__).resolve().parents[2] / "docs/METRICS.md"
_TOTAL = {"counter": "_total"}
_PARTS = {"histogram": ("_bucket", "_sum", "_count")}

_INTRODUCTION = """\
# Metrics

Every agent serves its metrics at `http://127.0.0.1:9470/metrics` (`--metrics-port`), the rendezvous at
`http://127.0.0.1:9471/metrics`. `deploy/prometheus/` scrapes both, with alerts; `deploy/grafana/` shows them.
Seconds and bytes throughout; labels are members' names and a few fixed words. Figures of steps and requests are the
head's, which alone sees whole ones. A gauge without a sample does not apply now. This page is made by `make generated`.
"""


@dataclass(frozen=True)
class Family:
    """One metric as it is exposed."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def series(self) -> set[str]:
        """The names that a query may use."""
        return {self.name + part for part in _PARTS.get(self.kind, ("",))}


def agent_registry() -> CollectorRegistry:
    """What an agent serves, before anything has happened."""
    registry = AgentMetrics(VERSION).registry
    registry.register(StatusCollector(pb.Status, list, lambda: None, lambda: None))
    return registry


def rendezvous_registry() -> CollectorRegistry:
    """What a rendezvous serves, before anything has happened."""
    circuits = Circuits()
    return make_metrics(Registry(), DatagramServer(circuits, 0))


def families(registry: CollectorRegistry) -> list[Family]:
    """All of ``registry``'s, in its order."""
    found = []
    for collector in registry._collector_to_names:  # the one way to the labels of a family without samples
        for metric in collector.collect():
            labels = getattr(collector, "_labelnames", None) or getattr(metric, "_labelnames", ())
            name = metric.name + _TOTAL.get(metric.type, "")
            found.append(Family(name, metric.type, tuple(labels), metric.documentation))
    return found


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for title, registry in (("Agent", agent_registry()), ("Rendezvous", rendezvous_registry())):
        parts += [f"## {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        for family in families(registry):
            labels = ", ".join(f"`{label}`" for label in family.labels)
            parts.append(f"| `{family.name}` | {family.kind} | {labels} | {family.text} |")
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
