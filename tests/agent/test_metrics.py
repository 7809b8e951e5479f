"""What is counted, and what is read at a scrape."""

from __future__ import annotations

import json

from prometheus_client import CollectorRegistry, generate_latest

from kafila_agent.edge.edge import Edge
from kafila_agent.edge.frame import StageTime
from kafila_agent.gauges import StatusCollector
from kafila_agent.head.generation import Finished
from kafila_agent.head.measure import Measured, RequestMeasures, Step
from kafila_agent.metrics import AgentMetrics
from kafila_planner.facts import parse_fleet
from kafila_planner.planner import plan_ring
from kafila_planner.ring import plan_to_json
from kafila_proto import agent_pb2 as pb

MS = 1_000_000


def values(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def step(*compute_ms: int, circuit_ms: int, queue_ms: int = 1) -> Step:
    return Step(circuit_ms / 1e3, tuple(StageTime(ms * MS, queue_ms * MS) for ms in compute_ms))


def test_a_step_is_told_apart_by_stage_and_the_head_is_counted_once():
    metrics = AgentMetrics("1")
    metrics.on_ring(["desk", "laptop"])
    metrics.on_step(step(10, 30, 5, circuit_ms=100))
    seen = values(metrics.registry)
    assert seen['kafila_stage_compute_seconds_sum{member="desk"}'] == 0.015
    assert seen['kafila_stage_compute_seconds_count{member="desk"}'] == 1
    assert seen['kafila_stage_compute_seconds_sum{member="laptop"}'] == 0.03
    assert seen['kafila_stage_queue_seconds_sum{member="desk"}'] == 0.002
    assert seen["kafila_circuit_seconds_sum"] == 0.1
    assert round(seen["kafila_circuit_transit_seconds_sum"], 9) == 0.052  # 100 - 45 - 3


def test_a_step_of_another_ring_counts_only_as_a_whole():
    metrics = AgentMetrics("1")
    metrics.on_ring(["desk", "laptop"])
    metrics.on_step(step(10, 5, circuit_ms=20))
    seen = values(metrics.registry)
    assert seen["kafila_circuit_seconds_count"] == 1
    assert not any(name.startswith("kafila_stage_compute") for name in seen)


def test_requests_and_their_ends():
    metrics = AgentMetrics("1")
    metrics.on_accepted(7)
    metrics.on_first_token(0.3)
    metrics.on_token(None)
    metrics.on_token(0.04)
    measures = RequestMeasures(1.0, 0.3, 20.0, 0.05, 0.04, 0.2)
    metrics.on_finished(Finished("length", 7, 2, measures))
    metrics.on_aborted("its client left")
    metrics.on_rejected()
    seen = values(metrics.registry)
    assert seen["kafila_prompt_tokens_total"] == 7
    assert seen["kafila_generation_tokens_total"] == 2
    assert seen["kafila_inter_token_latency_seconds_count"] == 1
    assert seen["kafila_request_time_per_output_token_seconds_sum"] == 0.05
    assert seen['kafila_requests_finished_total{reason="length"}'] == 1
    assert seen['kafila_requests_finished_total{reason="stop"}'] == 0
    assert seen["kafila_requests_aborted_total"] == seen["kafila_requests_rejected_total"] == 1


def test_edges_and_what_became_of_them():
    metrics = AgentMetrics("1")
    metrics.on_edge_open("laptop", "direct", 0.4)
    metrics.on_edge_failed("tower")
    metrics.on_edge_moved("laptop", "relayed")
    metrics.on_edge_lost("laptop")
    metrics.on_round_trip("laptop", "relayed", 0.08)
    seen = values(metrics.registry)
    assert seen['kafila_edge_open_seconds_count{path="direct"}'] == 1
    assert seen['kafila_edges_failed_total{peer="tower"}'] == 1
    assert seen['kafila_edges_moved_total{path="relayed",peer="laptop"}'] == 1
    assert seen['kafila_edges_lost_total{peer="laptop"}'] == 1
    assert seen['kafila_edge_ping_seconds_bucket{le="0.1",path="relayed",peer="laptop"}'] == 1
    assert seen['kafila_edge_ping_seconds_bucket{le="0.075",path="relayed",peer="laptop"}'] == 0


def scrape(status: pb.Status, edges: list[Edge], measured: Measured | None) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: status, lambda: edges, lambda: measured, lambda: 0.05))
    return values(registry)


def planned_status() -> pb.Status:
    member = {
        "bandwidth_bytes_per_s": 1e10,
        "overhead_s": 1e-3,
        "memory_bytes": 10**10,
        "rendezvous_rtt_s": 0.02,
    }
    document = {
        "model": {
            "name": "m",
            "blocks": 4,
            "block_bytes": 10**8,
            "head_bytes": 10**7,
            "kv_bytes_per_token_per_block": 10,
        },
        "context_tokens": 64,
        "concurrency": 2,
        "anchor": "desk",
        "members": [
            member | {"name": name, "mapping": "endpoint-independent", "filtering": "endpoint-independent"}
            for name in ("desk", "laptop", "tower")
        ],
    }
    plan = plan_to_json(plan_ring(parse_fleet(document)))
    session = pb.SessionStatus(
        state=pb.SessionStatus.SERVING, epoch=2, expected_members=3, plan_json=json.dumps(plan)
    )
    for name in ("desk", "laptop", "tower"):
        session.members.add(
            name=name, state="SERVING", predicted_stage_s=0.02, loaded_bytes=5, total_bytes=10
        )
    return pb.Status(name="desk", attached=True, session=session)


def test_a_scrape_shows_the_plan_beside_what_came_of_it():
    edge = Edge("laptop", b"", "relayed", lambda frame: None, streams=None)  # no exchanges here
    edge.rtt_s, edge.packets_lost = 0.05, 3
    edge.send(b"12345")
    measured = Measured(1, 2, 4, 0.25, 9, 99, None, None, None, None, ())
    seen = scrape(planned_status(), [edge], measured)
    assert seen['kafila_agent_info{member="desk"}'] == 1
    assert seen['kafila_session_state{state="serving"}'] == 1
    assert sum(value for name, value in seen.items() if name.startswith("kafila_session_state")) == 1
    assert seen['kafila_edge_up{path="relayed",peer="laptop",predicted="direct"}'] == 1
    assert seen['kafila_edge_up{path="none",peer="tower",predicted="direct"}'] == 0
    assert seen['kafila_edge_bytes_total{direction="sent",peer="laptop"}'] == 5
    assert seen['kafila_edge_packets_lost_total{peer="laptop"}'] == 3
    assert seen['kafila_stage_seconds{kind="predicted",member="tower"}'] == 0.02
    assert seen["kafila_predicted_tokens_per_second"] > 0
    assert seen["kafila_kv_cache_usage_ratio"] == 0.25
    assert (seen["kafila_num_requests_running"], seen["kafila_num_requests_waiting"]) == (1, 2)


def test_without_a_session_nothing_is_made_up():
    seen = scrape(pb.Status(name="desk"), [], None)
    assert seen['kafila_session_state{state="none"}'] == 1
    assert seen["kafila_rendezvous_attached"] == 0
    for absent in ("kafila_edge_up", "kafila_stage_seconds", "kafila_slots", "kafila_network_share_ratio"):
        assert not any(name.startswith(absent) for name in seen)
