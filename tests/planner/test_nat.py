"""Expected paths: the paper's Table III, what kernel NATs did, and site, NAT, hairpin and UDP."""

from __future__ import annotations

from typing import Any

import pytest

from kafila_planner.facts import Behaviour, MemberFacts
from kafila_planner.nat import expected_path, judge_path
from kafila_planner.ring import Path

EI, AD, APD = Behaviour
PERMISSIVE, ORDINARY, RESTRICTIVE = (EI, EI), (EI, APD), (APD, APD)


def someone(name: str, behaviours: tuple[Behaviour | None, Behaviour | None], **facts: Any) -> MemberFacts:
    return MemberFacts(name, mapping=behaviours[0], filtering=behaviours[1], **facts)


@pytest.mark.parametrize(
    ("a", "b", "path"),
    [
        # Table III: direct if one is permissive or neither is restrictive, and it was right for these seven
        (PERMISSIVE, PERMISSIVE, Path.DIRECT),
        (PERMISSIVE, ORDINARY, Path.DIRECT),
        (PERMISSIVE, RESTRICTIVE, Path.DIRECT),
        (ORDINARY, ORDINARY, Path.DIRECT),
        (RESTRICTIVE, RESTRICTIVE, Path.RELAYED),
        # Ordinary and restrictive: by what the ordinary side filters
        ((EI, APD), RESTRICTIVE, Path.RELAYED),
        ((EI, AD), RESTRICTIVE, Path.DIRECT),
        # Filtering by address lets nobody in whose peer cannot be told where to send
        ((AD, AD), RESTRICTIVE, Path.RELAYED),
        ((APD, EI), RESTRICTIVE, Path.DIRECT),
        ((AD, EI), (AD, AD), Path.DIRECT),
        # Unknown is the strictest
        ((None, None), ORDINARY, Path.RELAYED),
        ((None, None), PERMISSIVE, Path.DIRECT),
        ((EI, None), (EI, None), Path.DIRECT),
        ((None, EI), RESTRICTIVE, Path.DIRECT),
    ],
)
def test_behaviours(
    a: tuple[Behaviour | None, Behaviour | None], b: tuple[Behaviour | None, Behaviour | None], path: Path
) -> None:
    assert expected_path(someone("a", a), someone("b", b)) is path
    assert expected_path(someone("b", b), someone("a", a)) is path


@pytest.mark.parametrize(
    ("behaviours", "a", "b", "path", "why"),
    [
        (RESTRICTIVE, {"site": "home"}, {"site": "home"}, Path.DIRECT, "site"),
        (RESTRICTIVE, {"site": "home"}, {"site": "work"}, Path.RELAYED, "neither can aim"),
        (ORDINARY, {"nat": "x"}, {"nat": "x"}, Path.RELAYED, "hairpin"),
        (ORDINARY, {"nat": "x", "hairpin": True}, {"nat": "x", "hairpin": False}, Path.RELAYED, "hairpin"),
        (ORDINARY, {"nat": "x", "hairpin": True}, {"nat": "x", "hairpin": True}, Path.DIRECT, "punch"),
        (RESTRICTIVE, {"nat": "x", "hairpin": True}, {"nat": "x", "hairpin": True}, Path.RELAYED, "neither"),
        (ORDINARY, {"nat": "x"}, {"nat": "y"}, Path.DIRECT, "punch"),
        (RESTRICTIVE, {"nat": "x", "site": "s"}, {"nat": "x", "site": "s"}, Path.DIRECT, "site"),
        (PERMISSIVE, {"udp": False}, {}, Path.RELAYED, "a has no UDP"),
        (PERMISSIVE, {"udp": False, "site": "s"}, {"site": "s"}, Path.RELAYED, "a has no UDP"),
    ],
)
def test_places(
    behaviours: tuple[Behaviour, Behaviour], a: dict[str, Any], b: dict[str, Any], path: Path, why: str
) -> None:
    judged, reason = judge_path(someone("a", behaviours, **a), someone("b", behaviours, **b))
    assert judged is path
    assert why in reason


def test_a_punch_that_fails_is_explained_by_both_ends() -> None:
    _, reason = judge_path(someone("a", (EI, None)), someone("b", RESTRICTIVE))
    assert reason == (
        "b shows each peer another address, and a (unmeasured) lets in only addresses and ports it has sent to"
    )
