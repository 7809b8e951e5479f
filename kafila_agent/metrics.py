"""What this agent counts as it happens, for Prometheus. Labels are members' names and a few fixed words: no address,
code or prompt. ``gauges.py`` has what is read at each scrape; ``docs/METRICS.md`` lists all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from kafila_agent.edge.observer import EdgeObserver
from kafila_agent.head.observer import Observer

if TYPE_CHECKING:
    from kafila_agent.head.generation import Finished
    from kafila_agent.head.measure import Step
    from kafila_agent.head.sequence import Verdict

_STEP_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_WAIT_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
_RTT_BUCKETS = (
    0.0002,
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.035,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1.0,
)
_OPEN_BUCKETS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0)


class AgentMetrics(Observer, EdgeObserver):
    """An engine's and the edges' observer; ``registry`` holds what they told."""

    def __init__(self, version: str):
        self.registry = CollectorRegistry()
        self._ring: tuple[str, ...] = ()
        ProcessCollector(registry=self.registry)
        Gauge(
            "kafila_build_info", "The version, as a label; always 1.", ["version"], registry=self.registry
        ).labels(version).set(1)
        self._make_request_families()
        self._make_step_families()
        self._make_edge_families()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _make_request_families(self) -> None:
        self._prompt_tokens = self._counter("kafila_prompt_tokens", "Tokens of accepted prompts.")
        self._generation_tokens = self._counter("kafila_generation_tokens", "Tokens sampled.")
        self._rejected = self._counter("kafila_requests_rejected", "Requests that found the queue full.")
        self._finished = self._counter(
            "kafila_requests_finished", "Requests answered to their end, by why it was the end.", "reason"
        )
        for reason in ("stop", "length"):
            self._finished.labels(reason)
        self._aborted = self._counter(
            "kafila_requests_aborted", "Requests that ended before their answer did."
        )
        self._guesses = self._counter(
            "kafila_draft_tokens", "Rows launched on a guess, by who made it.", "proposer"
        )
        self._guesses_right = self._counter(
            "kafila_draft_tokens_accepted", "Guesses that turned out right, by who made them.", "proposer"
        )
        self._ttft = self._histogram(
            "kafila_time_to_first_token_seconds", "Request accepted to first text sent (TTFT).", _WAIT_BUCKETS
        )
        self._itl = self._histogram(
            "kafila_inter_token_latency_seconds", "Gap between tokens of one request (ITL).", _STEP_BUCKETS
        )
        self._tpot = self._histogram(
            "kafila_request_time_per_output_token_seconds",
            "Mean gap between the tokens of one finished request (TPOT).",
            _STEP_BUCKETS,
        )
        self._latency = self._histogram(
            "kafila_e2e_request_latency_seconds", "Request accepted to its end.", _WAIT_BUCKETS
        )

    def _make_step_families(self) -> None:
        self._circuit = self._histogram(
            "kafila_circuit_seconds", "One decode step round the ring, by the head's clock.", _STEP_BUCKETS
        )
        self._transit = self._histogram(
            "kafila_circuit_transit_seconds",
            "The part of a decode step that no stage computed or held in its queue: time on the edges.",
            _STEP_BUCKETS,
        )
        self._compute = self._histogram(
            "kafila_stage_compute_seconds",
            "Compute of a decode step, by that member's own clock; counted on the head.",
            _STEP_BUCKETS,
            "member",
        )
        self._queue = self._histogram(
            "kafila_stage_queue_seconds",
            "Wait of a decode step in a stage's queue, by that member's own clock; counted on the head.",
            _STEP_BUCKETS,
            "member",
        )

    def _make_edge_families(self) -> None:
        self._edge_open = self._histogram(
            "kafila_edge_open_seconds",
            "Edges opened, by path, and how long it took; 0 where the peer was first.",
            _OPEN_BUCKETS,
            "path",
        )
        self._edges_failed = self._counter("kafila_edges_failed", "Edges that could not be had.", "peer")
        self._edges_moved = self._counter(
            "kafila_edges_moved", "Edges that went on over another address, by the path then.", "peer", "path"
        )
        self._edges_lost = self._counter(
            "kafila_edges_lost", "Edges that stood and were closed by the peer or fell silent.", "peer"
        )
        self._ping = self._histogram(
            "kafila_edge_ping_seconds", "Every single round trip of an edge.", _RTT_BUCKETS, "peer", "path"
        )

    # Observer: the engine's

    def on_ring(self, ring: Sequence[str]) -> None:
        """A plan is at work."""
        self._ring = tuple(ring)

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
        queue_s = sum(stage.queue_ns for stage in step.stages) / 1e9
        self._transit.observe(max(0.0, step.circuit_s - step.compute_s - queue_s))
        if len(step.stages) != len(self._ring) + 1:
            return
        # The head is visited twice: its blocks first, norm and LM head last.
        visits = zip((*self._ring, self._ring[0]), step.stages, strict=True)
        compute_ns, queue_ns = dict.fromkeys(self._ring, 0), dict.fromkeys(self._ring, 0)
        for member, stage in visits:
            compute_ns[member] += stage.compute_ns
            queue_ns[member] += stage.queue_ns
        for member in self._ring:
            self._compute.labels(member).observe(compute_ns[member] / 1e9)
            self._queue.labels(member).observe(queue_ns[member] / 1e9)

    def on_guess(self, by: str) -> None:
        """A guessed row was launched."""
        self._guesses.labels(by).inc()

    def on_verdict(self, verdict: Verdict) -> None:
        """A guess was judged."""
        if verdict.right:
            self._guesses_right.labels(verdict.by).inc()

    def on_finished(self, finished: Finished) -> None:
        """A request was answered."""
        self._finished.labels(finished.reason).inc()
        self._latency.observe(finished.measures.latency_s)
        if finished.measures.tokens_per_s:
            self._tpot.observe(1 / finished.measures.tokens_per_s)

    def on_aborted(self, reason: str) -> None:
        """A request broke off."""
        self._aborted.inc()

    # EdgeObserver

    def on_edge_open(self, peer: str, path: str, took_s: float) -> None:
        """An edge stands."""
        self._edge_open.labels(path).observe(took_s)

    def on_edge_failed(self, peer: str) -> None:
        """An edge could not be had."""
        self._edges_failed.labels(peer).inc()

    def on_edge_moved(self, peer: str, path: str) -> None:
        """An edge took another way."""
        self._edges_moved.labels(peer, path).inc()

    def on_edge_lost(self, peer: str) -> None:
        """An edge is no more."""
        self._edges_lost.labels(peer).inc()

    def on_round_trip(self, peer: str, path: str, rtt_s: float) -> None:
        """A ping was answered."""
        self._ping.labels(peer, path).observe(rtt_s)
