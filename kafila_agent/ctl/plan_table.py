"""A plan as people read it: one row per stage with the edge that leaves it, then what to expect."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from kafila_agent.view.figures import seconds, size
from kafila_planner.advice import outlooks
from kafila_planner.explain import explain as explain_plan
from kafila_planner.facts import Fleet, FleetError
from kafila_planner.ring import Refusal, RingPlan

Answer = tuple[Fleet, RingPlan | Refusal] | FleetError


def show(answer: Answer, explained: bool) -> None:
    """Print a plan, a refusal, or what is wrong with one fleet of a list."""
    console = Console(highlight=False, soft_wrap=True)
    if isinstance(answer, FleetError):
        console.print(f"error: {answer}", markup=False)
        return
    fleet, planned = answer
    if isinstance(planned, RingPlan):
        console.print(plan_table(fleet, planned))
        for line in _summary(fleet, planned):
            console.print(line, markup=False)
    if explained or isinstance(planned, Refusal):
        for sentence in explain_plan(fleet, planned):
            console.print(sentence, markup=False)


def plan_table(fleet: Fleet, plan: RingPlan) -> Table:
    """Who holds what and what each stage is predicted to take, with the edge that leaves it."""
    members = {member.name: member for member in fleet.members}
    table = Table(box=None, pad_edge=False, title=_title(plan), title_justify="left")
    table.add_column("member", no_wrap=True)
    for title in ("bandwidth", "blocks", "stage", "needs / room", "edge"):
        table.add_column(title, justify="right", no_wrap=True)
    for place, stage in enumerate(plan.stages):
        edge = plan.edges[place] if plan.edges else None
        bandwidth = members[stage.member].bandwidth_bytes_per_s
        table.add_row(
            stage.member + (" (head)" if place == 0 else ""),
            "unknown" if bandwidth is None else f"{size(bandwidth)}/s",
            f"{stage.start}–{stage.end - 1} ({stage.end - stage.start})",
            seconds(stage.predicted_s),
            f"{size(stage.needs_bytes)} / {size(stage.room_bytes)}",
            f"{edge.path} {seconds(edge.cost_s)}" if edge else "",
        )
    return table


def _title(plan: RingPlan) -> str:
    division = "" if plan.division == "planner" else f", {plan.division} division"
    return f"Plan for {plan.objective}{division} (tier {plan.tier}), with predicted stage times and edges"


def _summary(fleet: Fleet, plan: RingPlan) -> list[str]:
    predicted = plan.predicted
    lines = [f"bottleneck {seconds(plan.bottleneck_s)}, circuit {seconds(plan.circuit_s)}"]
    if predicted.tokens_per_s_one_user is not None and predicted.tokens_per_s_all_users is not None:
        lines.append(
            f"predicted {predicted.tokens_per_s_one_user:.3g} tokens/s for one user, "
            f"{predicted.tokens_per_s_all_users:.3g} for {fleet.concurrency}, "
            f"network share {predicted.network_share:.0%}, first token in {seconds(predicted.ttft_s)}"
        )
    for outlook in outlooks(fleet, plan):
        if outlook.objective != plan.objective and outlook.tokens_per_s_one_user is not None:
            lines.append(
                f"planned for {outlook.objective}: {outlook.tokens_per_s_one_user:.3g} tokens/s for one user, "
                f"{outlook.tokens_per_s_all_users:.3g} for {fleet.concurrency}, over {', '.join(outlook.ring)}"
            )
    lines += [f"note: {note}" for note in plan.notes]
    lines += [f"no seat: {out.member} ({out.reason})" for out in plan.unseated]
    return lines
