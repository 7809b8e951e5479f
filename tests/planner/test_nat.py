"""Expected paths: the paper's Table III, what kernel NATs did, and site, NAT, hairpin and UDP."""

from __future__ import annotations

from typing import Any

import pytest

from kafila_planner.facts import Behaviour, MemberFacts
from kafila_planner.nat import advise_path, describe_nat, expected_path, judge_path
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
        (RESTRICTIVE, {"nat": "x", "hairpin_open": True}, {"nat": "x"}, Path.DIRECT, "sends back inside"),
        (RESTRICTIVE, {"nat": "x", "hairpin_open": True}, {"nat": "y"}, Path.RELAYED, "neither"),
        (RESTRICTIVE, {"nat": "x", "hairpin_open": False}, {"nat": "x"}, Path.RELAYED, "hairpin"),
        (ORDINARY, {"nat": "x"}, {"nat": "y"}, Path.DIRECT, "punch"),
        (
            PERMISSIVE,
            {"relay_only": True, "site": "s"},
            {"site": "s"},
            Path.RELAYED,
            "a is told to use the relay",
        ),
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


@pytest.mark.parametrize(
    ("a", "b", "path"),
    [
        ({"ipv6": True}, {"ipv6": True}, Path.DIRECT),
        ({"ipv6": True, "ipv4": False}, {"ipv6": True}, Path.DIRECT),
        ({"ipv6": True}, {}, Path.RELAYED),
        ({"ipv6": True, "udp": False}, {"ipv6": True}, Path.RELAYED),
    ],
)
def test_with_ipv6_on_both_sides_no_nat_is_in_the_way(
    a: dict[str, Any], b: dict[str, Any], path: Path
) -> None:
    one, other = someone("a", RESTRICTIVE, **a), someone("b", RESTRICTIVE, **b)
    assert expected_path(one, other) is expected_path(other, one) is path


def test_no_version_of_ip_in_common_is_relayed_however_open_the_other_is() -> None:
    six = someone("a", (None, None), ipv4=False, ipv6=True)
    path, why = judge_path(six, someone("b", PERMISSIVE))
    assert path is Path.RELAYED
    assert "no version of IP in common" in why
    assert advise_path(six, someone("b", PERMISSIVE)) == "get IPv6 for b"


@pytest.mark.parametrize(
    ("a", "b", "advice"),
    [
        (someone("a", ORDINARY), someone("b", ORDINARY), None),
        (someone("a", RESTRICTIVE), someone("b", ORDINARY), "UPnP on the router of a or b"),
        (someone("a", ORDINARY), someone("b", RESTRICTIVE), "UPnP on the router of b or a"),
        (someone("a", ORDINARY, nat="x"), someone("b", ORDINARY, nat="x"), "one LAN"),
        (someone("a", ORDINARY), someone("b", ORDINARY, udp=False), "let UDP through on b's network"),
        (someone("a", ORDINARY), someone("b", ORDINARY, relay_only=True), "b's agent without --relay-only"),
    ],
)
def test_advice_names_whose_router_it_is(a: MemberFacts, b: MemberFacts, advice: str | None) -> None:
    said = advise_path(a, b)
    assert said is None if advice is None else advice in (said or "")


def test_a_nat_is_described_in_words() -> None:
    assert describe_nat(someone("a", ORDINARY, nat="x")) == (
        "The NAT shows every destination the same address and lets in only the host and port that were spoken to."
    )
    assert describe_nat(someone("a", PERMISSIVE, ipv6=True)).endswith(
        "Over IPv6 it is seen at its own address."
    )
    assert describe_nat(someone("a", PERMISSIVE)).startswith("No NAT")
    assert "unknown" in describe_nat(someone("a", (None, None)))
    assert describe_nat(someone("a", ORDINARY, udp=False)) == "No UDP passes."
    assert "IPv6 alone" in describe_nat(someone("a", (None, None), ipv4=False, ipv6=True))
