"""What Grafana's dashboards ask and show; ``dashboards.py`` says how a panel looks and writes the JSON."""

from __future__ import annotations

from dataclasses import dataclass

from kafila_agent.gauges import MEMBER_STATES

_QUANTILES = (0.5, 0.95)


@dataclass(frozen=True)
class Graph:
    """Lines over time. ``queries`` are (expression, legend); series whose legend has ``dashed`` are drawn so."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str = ""
    dashed: str = ""
    columns: int = 8


@dataclass(frozen=True)
class Heat:
    """A heatmap of a histogram, once for each value of the variable ``repeat``."""

    title: str
    unit: str
    expression: str
    about: str
    repeat: str
    columns: int = 24


@dataclass(frozen=True)
class Board:
    """A dashboard: ``variables`` are (name, the query for its values); rows have titles."""

    name: str
    title: str
    about: str
    variables: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[Graph | Heat, ...]], ...]


def quantiles(histogram: str, legend: str = "", by: str = "") -> tuple[tuple[str, str], ...]:
    """Median and 95th percentile of a histogram."""
    labels = f"le, {by}" if by else "le"
    rate = f"sum by ({labels}) (rate({histogram}_bucket[$__rate_interval]))"
    return tuple((f"histogram_quantile({q}, {rate})", f"{legend} p{q * 100:.0f}".strip()) for q in _QUANTILES)


def named(expression: str) -> str:
    """With the name of the member whose agent says it, where else there is only an address."""
    return f"{expression} * on (instance) group_left (member) kafila_agent_info"


def rate(counter: str, by: str) -> str:
    """Per second, summed by labels; 0 where nothing has happened yet."""
    return f"sum by ({by}) (rate({counter}[$__rate_interval])) or vector(0)"


RING = Board(
    "ring",
    "Kafila: ring",
    "How the ring's time is spent: first on its edges, then in its stages. The head's agent knows most of it.",
    (("peer", "label_values(kafila_edge_ping_seconds_count, peer)"),),
    (
        (
            "Edges",
            (
                Heat(
                    "Round trips to $peer",
                    "s",
                    'sum by (le) (increase(kafila_edge_ping_seconds_bucket{peer="$peer"}[$__rate_interval]))',
                    "Every ping of the edges to this member. Two bands are two paths, or a path and its queue.",
                    "peer",
                ),
                Graph(
                    "Round trip by edge",
                    "s",
                    ((named("kafila_edge_rtt_seconds"), "{{member}} to {{peer}}, {{path}}"),),
                    "Median of the latest pings; relayed edges are dashed.",
                    "relayed",
                    columns=12,
                ),
                Graph(
                    "Edges of the plan",
                    "short",
                    ((named("kafila_edge_up"), "{{member}} to {{peer}}: {{path}}, predicted {{predicted}}"),),
                    "1 stands, 0 does not. A path other than the predicted one is worth a look.",
                    columns=12,
                ),
                Graph(
                    "Frames' bytes",
                    "Bps",
                    (
                        (
                            named("rate(kafila_edge_bytes_total[$__rate_interval])"),
                            "{{member}}, {{peer}}: {{direction}}",
                        ),
                    ),
                ),
                Graph(
                    "Packets sent again",
                    "pps",
                    (
                        (
                            named("rate(kafila_edge_packets_lost_total[$__rate_interval])"),
                            "{{member}} to {{peer}}",
                        ),
                    ),
                ),
                Graph(
                    "Network share",
                    "percentunit",
                    (
                        ("kafila_network_share_ratio", "measured"),
                        ("kafila_predicted_network_share_ratio", "predicted"),
                    ),
                    "Fraction of a token's time that is not computing.",
                    "predicted",
                ),
            ),
        ),
        (
            "Stages",
            (
                Graph(
                    "Stage time",
                    "s",
                    (("max by (member, kind) (kafila_stage_seconds)", "{{member}} {{kind}}"),),
                    "Compute of a decode step. Measured well above predicted: the machine is busy, hot or throttled.",
                    "predicted",
                ),
                Graph(
                    "Stage time, spread",
                    "s",
                    quantiles("kafila_stage_compute_seconds", "{{member}}", "member"),
                ),
                Graph(
                    "Wait in stages' queues",
                    "s",
                    quantiles("kafila_stage_queue_seconds", "{{member}}", "member"),
                ),
            ),
        ),
        (
            "Tokens",
            (
                Graph(
                    "Tokens a second",
                    "short",
                    (
                        ("sum(rate(kafila_generation_tokens_total[$__rate_interval]))", "all users"),
                        ("max(kafila_predicted_tokens_per_second)", "one user, predicted"),
                    ),
                    dashed="predicted",
                ),
                Graph("Time to first token", "s", quantiles("kafila_time_to_first_token_seconds")),
                Graph("Inter-token latency", "s", quantiles("kafila_inter_token_latency_seconds")),
                Graph(
                    "Time per output token", "s", quantiles("kafila_request_time_per_output_token_seconds")
                ),
                Graph(
                    "Circuit",
                    "s",
                    (
                        *quantiles("kafila_circuit_seconds", "whole"),
                        *quantiles("kafila_circuit_transit_seconds", "on the edges"),
                    ),
                    "One decode step round the ring, and its part that no stage computed or queued.",
                ),
                Graph(
                    "Guesses",
                    "short",
                    (
                        (rate("kafila_draft_tokens_total", "proposer"), "made a second, {{proposer}}"),
                        (
                            rate("kafila_draft_tokens_accepted_total", "proposer"),
                            "right a second, {{proposer}}",
                        ),
                    ),
                    "Rows sent ahead of the token they follow: those that were right cost no circuit of their own.",
                ),
                Graph("Request latency", "s", quantiles("kafila_e2e_request_latency_seconds")),
            ),
        ),
        (
            "Requests",
            (
                Graph(
                    "Slots and queue",
                    "short",
                    (
                        ("kafila_num_requests_running", "running"),
                        ("kafila_num_requests_waiting", "waiting"),
                        ("kafila_slots", "slots"),
                    ),
                    dashed="slots",
                ),
                Graph("KV cache in use", "percentunit", (("kafila_kv_cache_usage_ratio", "in use"),)),
                Graph(
                    "Requests",
                    "reqps",
                    (
                        (rate("kafila_requests_finished_total", "reason"), "finished {{reason}}"),
                        ("sum(rate(kafila_requests_aborted_total[$__rate_interval]))", "aborted"),
                        ("sum(rate(kafila_requests_rejected_total[$__rate_interval]))", "rejected"),
                    ),
                ),
            ),
        ),
    ),
)

_OF = '{instance=~"$instance"}'
MEMBER = Board(
    "member",
    "Kafila: member",
    "One agent: its session, its stage, its edges and its process.",
    (("instance", "label_values(kafila_agent_info, instance)"),),
    (
        (
            "Session",
            (
                Graph(
                    "Session",
                    "short",
                    ((f"kafila_session_state{_OF} == 1", "{{instance}} {{state}}"),),
                    "The state that this agent's session is in; held: it waits for a member that is away.",
                ),
                Graph(
                    "Members",
                    "short",
                    (
                        (f"kafila_session_members{_OF}", "{{instance}} in"),
                        (f"kafila_session_expected_members{_OF}", "{{instance}} expected"),
                    ),
                    dashed="expected",
                ),
                Graph(
                    "How far each member is",
                    "short",
                    ((f"kafila_member_state{_OF}", "{{instance}}: {{member}}"),),
                    f"{MEMBER_STATES}.",
                ),
                Graph(
                    "Loading",
                    "percentunit",
                    ((f"kafila_loaded_bytes{_OF} / kafila_planned_bytes{_OF}", "{{instance}}: {{member}}"),),
                ),
                Graph(
                    "Rendezvous, plan",
                    "short",
                    (
                        (f"kafila_rendezvous_attached{_OF}", "{{instance}} attached"),
                        (f"kafila_plan_epoch{_OF}", "{{instance}} epoch"),
                    ),
                ),
                Graph(
                    "Who is which",
                    "short",
                    ((f"kafila_agent_info{_OF}", "{{instance}} is {{member}}"),),
                ),
            ),
        ),
        (
            "Edges",
            (
                Graph(
                    "Edges opened",
                    "short",
                    (
                        (
                            f"sum by (instance, path) (kafila_edge_open_seconds_count{_OF})",
                            "{{instance}} {{path}}",
                        ),
                    ),
                    "Since the agent started: how many punches succeeded, and how many edges had to be relayed.",
                ),
                Graph(
                    "Time to open an edge",
                    "s",
                    (
                        (
                            f"sum by (instance, path) (kafila_edge_open_seconds_sum{_OF}) / "
                            f"sum by (instance, path) (kafila_edge_open_seconds_count{_OF})",
                            "{{instance}} {{path}}",
                        ),
                    ),
                    "Mean since the agent started.",
                ),
                Graph(
                    "Edges failed, lost, moved",
                    "short",
                    tuple(
                        (f"sum(kafila_edges_{what}_total{_OF}) or vector(0)", what)
                        for what in ("failed", "lost", "moved")
                    ),
                ),
            ),
        ),
        (
            "Process",
            (
                Graph("Memory", "bytes", ((f"process_resident_memory_bytes{_OF}", "{{instance}}"),)),
                Graph(
                    "Processors in use",
                    "short",
                    ((f"rate(process_cpu_seconds_total{_OF}[$__rate_interval])", "{{instance}}"),),
                ),
                Graph("Version", "short", ((f"kafila_build_info{_OF}", "{{instance}} {{version}}"),)),
            ),
        ),
    ),
)

RENDEZVOUS = Board(
    "rendezvous",
    "Kafila: rendezvous",
    "Who is attached, what is refused, and what is relayed.",
    (),
    (
        (
            "Sessions",
            (
                Graph("Sessions", "short", (("kafila_rendezvous_sessions", "{{state}}"),)),
                Graph(
                    "Agents",
                    "short",
                    (("kafila_rendezvous_agents", "attached"), ("kafila_rendezvous_members", "in a session")),
                ),
                Graph(
                    "Opened, admitted, failed",
                    "short",
                    (
                        ("increase(kafila_rendezvous_sessions_opened_total[1h])", "sessions opened"),
                        ("increase(kafila_rendezvous_members_admitted_total[1h])", "members admitted"),
                        (
                            "increase(kafila_rendezvous_introductions_failed_total[1h])",
                            "introductions failed",
                        ),
                    ),
                    "In the last hour. Many failed introductions are many wrong codes.",
                ),
                Graph("Refusals", "reqps", ((rate("kafila_rendezvous_refusals_total", "code"), "{{code}}"),)),
            ),
        ),
        (
            "Relay",
            (
                Graph(
                    "Circuits",
                    "short",
                    (
                        ("kafila_rendezvous_circuits", "{{state}}"),
                        ("kafila_rendezvous_circuits_limit", "limit"),
                    ),
                    dashed="limit",
                ),
                Graph(
                    "Relayed",
                    "Bps",
                    (("rate(kafila_rendezvous_relayed_bytes_total[$__rate_interval])", "bytes"),),
                    "Ciphertext; this machine's traffic is twice that.",
                ),
                Graph(
                    "Relayed datagrams",
                    "pps",
                    (
                        ("rate(kafila_rendezvous_relayed_datagrams_total[$__rate_interval])", "relayed"),
                        (rate("kafila_rendezvous_dropped_datagrams_total", "cause"), "dropped: {{cause}}"),
                    ),
                ),
                Graph(
                    "STUN",
                    "pps",
                    (
                        ("rate(kafila_rendezvous_reflected_datagrams_total[$__rate_interval])", "answered"),
                        ("rate(kafila_rendezvous_refused_reflections_total[$__rate_interval])", "refused"),
                        (
                            "rate(kafila_rendezvous_ignored_datagrams_total[$__rate_interval])",
                            "not understood",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Process",
            (
                Graph(
                    "Memory",
                    "bytes",
                    (('process_resident_memory_bytes{job="kafila-rendezvous"}', "resident"),),
                ),
                Graph(
                    "Processors in use",
                    "short",
                    (
                        (
                            'rate(process_cpu_seconds_total{job="kafila-rendezvous"}[$__rate_interval])',
                            "in use",
                        ),
                    ),
                ),
            ),
        ),
    ),
)

BOARDS = (RING, MEMBER, RENDEZVOUS)
