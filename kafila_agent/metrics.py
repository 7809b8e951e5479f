"""This agent's Prometheus metrics. Labels are member names and paths only: no addresses, codes or prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafila_agent.edge.edge import Edge
from kafila_agent.head.observer import Observer
from kafila_proto import agent_pb2 as pb

if TYPE_CHECKING:
    from kafila_agent.head.generation import Finished
    from kafila_agent.head.measure import Step

_STEP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_WAIT_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)


class AgentMetrics(Observer):
    """What the head counts as it happens (an engine's observer), and what is read at each scrape."""

    def __init__(self, version: str):
        self.registry = CollectorRegistry()

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=self.registry)

        Gauge("kafila_build_info", "Constant 1.", ["version"], registry=self.registry).labels(version).set(1)
        self._prompt_tokens = counter("kafila_prompt_tokens", "Tokens of accepted prompts.")
        self._generation_tokens = counter("kafila_generation_tokens", "Tokens sampled.")
        self._rejected = counter("kafila_requests_rejected", "Requests that found the queue full.")
        self._finished = counter("kafila_requests_finished", "Requests answered to their end.")
        self._aborted = counter("kafila_requests_aborted", "Requests that ended before their answer did.")
        self._ttft = histogram(
            "kafila_time_to_first_token_seconds", "Request accepted to first text sent.", _WAIT_BUCKETS
        )
        self._itl = histogram(
            "kafila_inter_token_latency_seconds", "Gap between tokens of one request.", _STEP_BUCKETS
        )
        self._circuit = histogram(
            "kafila_circuit_seconds", "One decode step round the ring, by the head's clock.", _STEP_BUCKETS
        )
        self._latency = histogram(
            "kafila_e2e_request_latency_seconds", "Request accepted to its end.", _WAIT_BUCKETS
        )

    def on_accepted(self, prompt_tokens: int) -> None:
        """A request was queued."""
        self._prompt_tokens.inc(prompt_tokens)

    def on_rejected(self) -> None:
        """The queue was full."""
        self._rejected.inc()

    def on_first_token(self, ttft_s: float) -> None:
        """The first text went out."""
        self._ttft.observe(ttft_s)

    def on_token(self, gap_s: float | None) -> None:
        """A token was sampled."""
        self._generation_tokens.inc()
        if gap_s is not None:
            self._itl.observe(gap_s)

    def on_step(self, step: Step) -> None:
        """A decode step came back."""
        self._circuit.observe(step.circuit_s)

    def on_finished(self, finished: Finished) -> None:
        """A request was answered."""
        self._finished.inc()
        self._latency.observe(finished.measures.latency_s)

    def on_aborted(self, reason: str) -> None:
        """A request broke off."""
        self._aborted.inc()


class StatusCollector(Collector):
    """Gauges read from the agent's own status at each scrape, so that none can be stale."""

    def __init__(self, status: Callable[[], pb.Status], edges: Callable[[], Iterable[Edge]]):
        self._status = status
        self._edges = edges

    def collect(self) -> Iterable[Metric]:
        """The families, in one order always."""
        status = self._status()
        session = status.session
        own = [member for member in session.members if member.name == status.name]
        yield _gauge(
            "kafila_rendezvous_attached", "1 while the stream to the rendezvous is up.", status.attached
        )
        yield _gauge("kafila_plan_epoch", "Number of the plan in force.", session.epoch)
        yield _gauge("kafila_session_state", "0 none, 1 forming ... 4 serving, 5 closed.", session.state)
        yield self._stages(session)
        for member in own:
            yield _gauge("kafila_loaded_bytes", "Bytes of this stage read so far.", member.loaded_bytes)
            yield _gauge("kafila_planned_bytes", "Bytes of this stage as planned.", member.total_bytes)
        if session.measured.HasField("network_share"):
            yield _gauge(
                "kafila_network_share_ratio",
                "Fraction of a token's time not spent computing.",
                session.measured.network_share,
            )
        yield from self._edge_families()

    @staticmethod
    def _stages(session: pb.SessionStatus) -> Metric:
        family = GaugeMetricFamily(
            "kafila_stage_seconds", "Compute of a decode step.", labels=["member", "kind"]
        )
        for member in session.members:
            for kind in ("predicted", "measured"):
                if member.HasField(f"{kind}_stage_s"):
                    family.add_metric([member.name, kind], getattr(member, f"{kind}_stage_s"))
        return family

    def _edge_families(self) -> Iterable[Metric]:
        rtt = GaugeMetricFamily("kafila_edge_rtt_seconds", "Measured round trip.", labels=["peer", "path"])
        moved = CounterMetricFamily(
            "kafila_edge_bytes", "Frame bytes since the edge opened.", labels=["peer", "direction"]
        )
        frames = CounterMetricFamily(
            "kafila_edge_frames", "Frames since the edge opened.", labels=["peer", "direction"]
        )
        for edge in self._edges():
            if edge.rtt_s is not None:
                rtt.add_metric([edge.peer, edge.path], edge.rtt_s)
            for direction in ("sent", "received"):
                moved.add_metric([edge.peer, direction], getattr(edge, f"bytes_{direction}"))
                frames.add_metric([edge.peer, direction], getattr(edge, f"frames_{direction}"))
        yield from (rtt, moved, frames)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
