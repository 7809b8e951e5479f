"""A plan in sentences: why each member got its blocks, why the head and the edges are what they are, what
limits the session, and what would change it.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafila_planner.advice import Without, front, gains, outlooks, weighs_changes, without_each
from kafila_planner.division import DivisionRule
from kafila_planner.facts import Fleet, MemberFacts
from kafila_planner.head import MARGIN, best_per_head
from kafila_planner.memory import Chain
from kafila_planner.nat import judge_path
from kafila_planner.placement import directions
from kafila_planner.problem import Problem, pose
from kafila_planner.ring import Edge, Refusal, Remedy, RingPlan, Stage, Tier

_FRONT_SHOWN = 12


def explain(fleet: Fleet, plan: RingPlan | Refusal) -> list[str]:
    """The plan's reasons and the advice it gives, or why there is none, one sentence or two an entry."""
    return list(_refused(plan) if isinstance(plan, Refusal) else _planned(fleet, plan))


def _refused(refusal: Refusal) -> Iterator[str]:
    yield f"No plan: {refusal.reason}."
    for one in refusal.refused:
        lack = gigabytes(one.needs_bytes - one.room_bytes)
        needs, room = gigabytes(one.needs_bytes), gigabytes(one.room_bytes)
        yield f"{one.member} would need {needs} and has {room}: {lack} too little."
    for remedy in refusal.remedies:
        yield f"It would fit with {remedy_words(remedy)}, everything else the same."
    for out in refusal.unseated:
        yield f"{out.member} has no seat: {out.reason}."


def remedy_words(remedy: Remedy) -> str:
    """A remedy as it would be said."""
    if remedy.member is None:
        return f"{remedy.change} = {remedy.to}"
    return f"{gigabytes(remedy.more_bytes or 0)} more room on {remedy.member}"


def _planned(fleet: Fleet, plan: RingPlan) -> Iterator[str]:
    problem, members = pose(fleet), {member.name: member for member in fleet.members}
    for stage in plan.stages:
        yield _stage_sentence(problem, plan, stage, members[stage.member])
    yield _head_sentence(problem, plan)
    for edge in plan.edges:
        yield _edge_sentence(edge, members)
    yield _order_sentence(plan)
    yield from _limit_sentences(fleet, plan)
    for out in plan.unseated:
        yield f"{out.member} has no seat: {out.reason}."
    yield from (f"{note[0].upper()}{note[1:]}." for note in plan.notes)
    yield from _advice_sentences(fleet, plan)


def _stage_sentence(problem: Problem, plan: RingPlan, stage: Stage, member: MemberFacts) -> str:
    count = stage.end - stage.start
    what = f"{stage.member} holds {count} of {problem.chain.blocks} blocks, [{stage.start}, {stage.end})"
    if plan.division != DivisionRule.PLANNER:
        return f"{what}, by the {plan.division} rule."
    if plan.tier is Tier.WORKING_SET:
        return f"{what}, in proportion to its room: not enough was measured for more."
    if plan.tier is Tier.THROUGHPUT:
        return f"{what}, by its arithmetic throughput: not every memory bandwidth was measured."
    assert member.bandwidth_bytes_per_s is not None
    assert stage.predicted_s is not None
    read = problem.chain.stage_read_bytes(stage.start, stage.end)
    pace = f"it reads {gigabytes(read)} of them a token at {member.bandwidth_bytes_per_s / 1e9:.4g} GB/s"
    head = f" and the head's {gigabytes(problem.chain.head_read_bytes)}" if stage.member == plan.head else ""
    why = _why_no_more(problem.chain, plan, stage, member)
    return f"{what}: {pace}{head}, {stage.predicted_s * 1e3:.3g} ms in all; {why}."


def _why_no_more(chain: Chain, plan: RingPlan, stage: Stage, member: MemberFacts) -> str:
    """What keeps a stage from taking the lighter of the blocks at its borders."""
    assert member.bandwidth_bytes_per_s is not None
    assert stage.predicted_s is not None
    assert plan.bottleneck_s is not None
    if len(plan.stages) == 1:
        return "it is alone"
    beside = [block for block in (stage.start - 1, stage.end) if 0 <= block < chain.blocks]
    if stage.needs_bytes + min(chain.held_bytes[block] for block in beside) > stage.room_bytes:
        return "its room is full"
    more_s = (
        member.block_overhead_s + min(chain.read_bytes[at] for at in beside) / member.bandwidth_bytes_per_s
    )
    if stage.predicted_s == plan.bottleneck_s and plan.objective == "throughput":
        return "it is the slowest stage, and no division has a quicker one"
    if stage.predicted_s + more_s > plan.bottleneck_s:
        return "one more would make it slower than the slowest stage"
    if chain.equal:
        return "members whose blocks cost less time took the rest"
    return "with its borders anywhere else the stages would add up to more, or the slowest be slower"


def _head_sentence(problem: Problem, plan: RingPlan) -> str:
    anchor = problem.seats[problem.seating.anchor].name
    if len(plan.ring) == 1:
        return f"{plan.head} is alone, so it is the head."
    if plan.tier is not Tier.COST_MODEL:
        why = (
            "it opened the session"
            if plan.head == anchor
            else f"{anchor}, who opened the session, has no room to be"
        )
        return f"{plan.head} is the head: {why}, and nothing measured prices another."
    if plan.objective != "throughput":
        if plan.head == anchor:
            why = f"it opened the session, and no other head is better by more than {MARGIN:.0%}"
        else:
            why = f"with {anchor}, who opened the session, it is over {MARGIN:.0%} worse or does not fit"
        return f"{plan.head} is the head: {why}, by the objective {plan.objective}."
    index = {seat.name: number for number, seat in enumerate(problem.seats)}
    cycle = tuple(index[name] for name in plan.ring)
    found = best_per_head(
        problem.divider(DivisionRule(plan.division)), directions(problem, cycle), problem.seating.anchor
    )
    slowest = {problem.seats[seat].name: placed.division.bottleneck_s for seat, placed in found.items()}
    if plan.head != anchor:
        if anchor not in slowest:
            return (
                f"{plan.head} is the head: {anchor}, who opened the session, has no room for the head's part."
            )
        share = 1 - slowest[plan.head] / slowest[anchor]
        better = f"with it the slowest stage is {share:.1%} shorter than with {anchor}"
        return f"{plan.head} is the head: {better}, who opened the session."
    best = min(slowest, key=lambda name: slowest[name])
    if slowest[best] == slowest[anchor]:
        return (
            f"{anchor} is the head: it opened the session, and no other head makes the slowest stage shorter."
        )
    share = 1 - slowest[best] / slowest[anchor]
    better = f"the best other, {best}, would shorten the slowest stage by {share:.1%} only"
    return f"{anchor} is the head: it opened the session, and {better} (the margin is {MARGIN:.0%})."


def _edge_sentence(edge: Edge, members: dict[str, MemberFacts]) -> str:
    why = judge_path(members[edge.source], members[edge.target])[1]
    price = "" if edge.cost_s is None else f", priced at a round trip of {edge.cost_s * 1e3:.3g} ms"
    return f"{edge.source} to {edge.target} should be {edge.path}: {why}{price}."


def _order_sentence(plan: RingPlan) -> str:
    if len(plan.ring) == 1:
        return "There is no ring to order."
    if len(plan.ring) <= 3:
        return "With so few members there is only one ring."
    if not plan.proven:
        return "The order is a good one, but not proven the best."
    which = "there is for these members" if not plan.notes else "that fits"
    if plan.ring_cost_s is None:
        return (
            f"No order {which} has fewer relayed edges ({plan.relayed_edges}); it is not priced, since not every "
            f"round trip to the rendezvous was measured."
        )
    return f"The order is the cheapest {which}: its round trips add up to {plan.ring_cost_s * 1e3:.4g} ms."


def _limit_sentences(fleet: Fleet, plan: RingPlan) -> Iterator[str]:
    predicted = plan.predicted
    if plan.bottleneck_s is not None:
        slowest = max(plan.stages, key=lambda stage: stage.predicted_s or 0.0)
        yield f"The slowest stage is {slowest.member}'s, {plan.bottleneck_s * 1e3:.3g} ms a token."
    if predicted.tokens_per_s_one_user is None or predicted.network_share is None:
        yield "No rate can be predicted: not everything was measured."
        return
    most = "the network" if predicted.network_share > 0.5 else "computing"
    yield (
        f"One user gets {predicted.tokens_per_s_one_user:.3g} tokens/s and is held up by {most} "
        f"(the network's share of a token is {predicted.network_share:.0%})."
    )
    assert predicted.tokens_per_s_all_users is not None
    assert predicted.bottleneck_s is not None
    full = predicted.tokens_per_s_all_users * predicted.bottleneck_s >= 1 - 1e-9
    why = "the slowest stage is always busy" if full else "the ring still has idle places"
    yield f"{fleet.concurrency} users get {predicted.tokens_per_s_all_users:.3g} tokens/s together: {why}."


def _advice_sentences(fleet: Fleet, plan: RingPlan) -> Iterator[str]:
    for without in without_each(fleet, plan):
        yield _without_sentence(fleet, plan, without)
    better = gains(fleet, plan)
    for gain in better[:3]:
        yield f"With {gain.change} the slowest stage would be {gain.share:.1%} shorter."
    if not better and weighs_changes(plan) and len(plan.ring) > 1:
        yield "No other anchor, and no order near this one, would make the slowest stage shorter."
    for outlook in outlooks(fleet, plan):
        yield (
            f"Planned for {outlook.objective}: circuit {outlook.circuit_s * 1e3:.4g} ms, slowest stage "
            f"{outlook.bottleneck_s * 1e3:.3g} ms, over {', '.join(outlook.ring)}."
        )
    points = front(fleet)
    if len(points) > 1:
        steps = min(len(points), _FRONT_SHOWN) - 1
        shown = [points[round(step * (len(points) - 1) / steps)] for step in range(steps + 1)]
        pairs = ", ".join(f"{circuit * 1e3:.4g}/{slowest * 1e3:.3g}" for circuit, slowest in shown)
        yield (
            f"Pareto front, whoever is head: a shorter circuit costs a slower slowest stage; in ms, "
            f"{len(shown)} of {len(points)} pairs: {pairs}."
        )
    if plan.gap:
        yield f"No plan can be better at what was asked for by more than {plan.gap * 1e3:.3g} ms."


def _without_sentence(fleet: Fleet, plan: RingPlan, without: Without) -> str:
    if not without.fits:
        return f"{without.member} is needed: the model does not fit without it."
    one, everyone = without.tokens_per_s_one_user, without.tokens_per_s_all_users
    if one is None or everyone is None:
        return f"Without {without.member} the model fits too; what it would serve cannot be predicted."
    now, now_everyone = plan.predicted.tokens_per_s_one_user, plan.predicted.tokens_per_s_all_users
    if now is None or now_everyone is None:
        return f"Without {without.member}: {one:.3g} tokens/s for one user, {everyone:.3g} for {fleet.concurrency}."
    return (
        f"Without {without.member}: {one:.3g} tokens/s for one user instead of {now:.3g}, "
        f"{everyone:.3g} for {fleet.concurrency} instead of {now_everyone:.3g}."
    )


def gigabytes(size_bytes: float) -> str:
    """A size as people say it."""
    if size_bytes < 1e5:
        return f"{size_bytes:.6g} bytes"
    return f"{size_bytes / 1e9:.3g} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.3g} MB"
