"""What the rendezvous counts, on Prometheus: read from the cores when asked, never kept twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafila_proto import VERSION
from kafila_proto.metrics_server import MetricsServer
from kafila_rendezvous.circuits import CircuitState
from kafila_rendezvous.datagrams import DatagramServer
from kafila_rendezvous.registry import Registry
from kafila_rendezvous.session_states import SessionState


class RendezvousCollector(Collector):
    """Reads a rendezvous's cores at each scrape."""

    def __init__(self, registry: Registry, datagrams: DatagramServer) -> None:
        self._registry = registry
        self._datagrams = datagrams

    def collect(self) -> Iterator[Metric]:
        """Every metric of the rendezvous, with its current value."""
        build = GaugeMetricFamily(
            "kafila_build_info", "The version, as a label; always 1.", labels=["version"]
        )
        build.add_metric([VERSION], 1)
        yield build
        yield from self._sessions()
        yield from self._relay()

    def _sessions(self) -> Iterator[Metric]:
        entries, totals = list(self._registry.sessions.values()), self._registry.totals
        states = Counter(entry.session.state for entry in entries)
        open_ = GaugeMetricFamily("kafila_rendezvous_sessions", "Open sessions, by state.", labels=["state"])
        for state in SessionState:
            if state is not SessionState.CLOSED:
                open_.add_metric([state.value], states[state])
        yield open_
        yield GaugeMetricFamily(
            "kafila_rendezvous_agents", "Agents attached.", value=len(self._registry.attached)
        )
        yield GaugeMetricFamily(
            "kafila_rendezvous_members",
            "Agents in a session.",
            value=sum(len(entry.session.members) for entry in entries),
        )
        yield CounterMetricFamily(
            "kafila_rendezvous_sessions_opened", "Sessions opened.", value=totals.sessions
        )
        yield CounterMetricFamily(
            "kafila_rendezvous_members_admitted", "Members admitted by their hosts.", value=totals.admitted
        )
        yield CounterMetricFamily(
            "kafila_rendezvous_introductions_failed",
            "Introductions that ended without a member.",
            value=self._registry.introductions_failed,
        )
        refusals = CounterMetricFamily(
            "kafila_rendezvous_refusals", "Requests refused, by reason.", labels=["code"]
        )
        for code, count in list(totals.refusals.items()):
            refusals.add_metric([code], count)
        yield refusals

    def _relay(self) -> Iterator[Metric]:
        circuits = self._datagrams.circuits
        states = circuits.count_by_state()
        in_being = GaugeMetricFamily(
            "kafila_rendezvous_circuits", "Circuits in being, by state.", labels=["state"]
        )
        for state in CircuitState:
            if state is not CircuitState.EXPIRED:
                in_being.add_metric([state.value], states[state])
        yield in_being
        yield GaugeMetricFamily(
            "kafila_rendezvous_circuits_limit", "Circuits there may be.", value=circuits.max_circuits
        )
        yield CounterMetricFamily(
            "kafila_rendezvous_relayed_bytes",
            "Bytes forwarded between members.",
            value=circuits.forwarded_bytes,
        )
        yield CounterMetricFamily(
            "kafila_rendezvous_relayed_datagrams",
            "Datagrams forwarded between members.",
            value=circuits.forwarded_datagrams,
        )
        dropped = CounterMetricFamily(
            "kafila_rendezvous_dropped_datagrams",
            "Datagrams of circuits dropped, by cause.",
            labels=["cause"],
        )
        for cause, count in list(circuits.dropped_datagrams.items()):
            dropped.add_metric([cause], count)
        yield dropped
        yield CounterMetricFamily(
            "kafila_rendezvous_ignored_datagrams",
            "Datagrams that were neither STUN nor of a circuit.",
            value=self._datagrams.ignored_datagrams,
        )
        yield CounterMetricFamily(
            "kafila_rendezvous_reflected_datagrams",
            "STUN requests answered.",
            value=self._datagrams.reflected_datagrams,
        )
        yield CounterMetricFamily(
            "kafila_rendezvous_refused_reflections",
            "STUN requests of sources that asked too often.",
            value=self._datagrams.refused_datagrams,
        )


def make_metrics(registry: Registry, datagrams: DatagramServer) -> CollectorRegistry:
    """Everything that is served: the cores' metrics and the process's own."""
    metrics = CollectorRegistry()
    metrics.register(RendezvousCollector(registry, datagrams))
    ProcessCollector(registry=metrics)
    return metrics


def serve_metrics(registry: Registry, datagrams: DatagramServer, host: str, port: int) -> MetricsServer:
    """Serve a rendezvous's metrics over HTTP. Raises OSError if the port cannot be had."""
    return MetricsServer(make_metrics(registry, datagrams), host, port)
