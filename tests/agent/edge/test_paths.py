from __future__ import annotations

import itertools

import pytest

from kafila_agent.edge.check import CHECK_BYTES, PairKey
from kafila_agent.edge.paths import (
    MAX_PATHS,
    MEASURE_DELAYS_S,
    RELAXED_DELAY_S,
    SEARCH_DELAYS_S,
    SEARCH_TRIES,
    SIZE_DELAYS_S,
    SUSPECT_EVERY_S,
    PathMeasured,
    PathReady,
    Paths,
)

KEY = PairKey.derive(b"session", 1, b"1" * 32, b"2" * 32)
SIZES = (1452, 1200)


def answer(paths: Paths, other: Paths, datagrams, now: float, seen_from="dialler", fits=9000) -> None:
    """Let ``other`` answer ``datagrams`` of ``paths`` at once, those that fit the path."""
    for data, address in datagrams:
        if len(data) <= fits:
            other.receive_check(KEY.parse(data), seen_from, now, searching=False)
            for reply, _ in other.datagrams_to_send(now):
                paths.receive_check(KEY.parse(reply), address, now, searching=False)


@pytest.fixture
def dialler() -> Paths:
    return Paths(KEY, dials=True, sizes=SIZES)


@pytest.fixture
def dialled() -> Paths:
    return Paths(KEY, dials=False, sizes=SIZES)


def test_an_address_is_found_small_then_measured_largest_first(dialler, dialled):
    dialler.search(["there"], 0.0)
    found = dialler.datagrams_to_send(0.0)
    assert [len(data) for data, _ in found] == [CHECK_BYTES]
    answer(dialler, dialled, found, 0.1)
    assert dialler.next_event() is None
    sized = dialler.datagrams_to_send(0.1)
    assert [len(data) for data, _ in sized] == [1452, 1452, 1200, 1200]
    answer(dialler, dialled, sized, 0.2)
    assert dialler.next_event() == PathReady("there", 1452, pytest.approx(0.1))
    assert dialler.next_event() is None


def test_the_round_trip_of_a_ready_path_goes_on_being_measured(dialler, dialled):
    dialler.search(["there"], 0.0)
    for now in (0.0, 0.1):
        answer(dialler, dialled, dialler.datagrams_to_send(now), now + 0.1)
    assert dialler.next_event() == PathReady("there", 1452, pytest.approx(0.1))
    for rtt_s in (0.3, 0.1, 0.2, 0.4, 0.5, 0.6, 0.7):
        now = dialler.get_timer()
        sent = dialler.datagrams_to_send(now)
        assert [len(data) for data, _ in sent] == [CHECK_BYTES]
        answer(dialler, dialled, sent, now + rtt_s)
    assert dialler.get_timer() - now == pytest.approx(MEASURE_DELAYS_S[-1])
    measured = [dialler.next_event() for _ in range(5)]
    assert measured == [PathMeasured("there", 1452, pytest.approx(s)) for s in (0.1, 0.1, 0.1, 0.1, 0.2)]


def test_the_dialled_only_opens_the_way(dialler, dialled):
    dialled.search(["there"], 0.0)
    answer(dialled, dialler, dialled.datagrams_to_send(0.0), 0.1)
    assert dialled.get_timer() is None
    assert dialled.next_event() is None


def test_unanswered_checks_are_repeated_less_and_less(dialler):
    dialler.search(["there"], 0.0)
    times = []
    for _ in range(8):
        times.append(dialler.get_timer())
        dialler.datagrams_to_send(times[-1])
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps == pytest.approx([*SEARCH_DELAYS_S, SEARCH_DELAYS_S[-1], SEARCH_DELAYS_S[-1]])
    dialler.relax(RELAXED_DELAY_S)
    dialler.datagrams_to_send(now := dialler.get_timer())
    assert dialler.get_timer() == now + RELAXED_DELAY_S


def test_what_was_known_is_sought_anew_often_at_first(dialler, dialled):
    dialler.search(["there"], 0.0)
    for now in (0.0, 0.1):
        answer(dialler, dialled, dialler.datagrams_to_send(now), now)
    dialler.relax(RELAXED_DELAY_S)
    dialler.search_again(1.0)
    times = [1.0]
    for _ in range(SEARCH_TRIES + 1):
        assert [len(data) for data, _ in dialler.datagrams_to_send(times[-1])] == [CHECK_BYTES]
        times.append(dialler.get_timer())
    assert times[SEARCH_TRIES] < 5.5
    assert times[-1] - times[-2] == RELAXED_DELAY_S


def test_a_path_too_narrow_for_quic_is_left(dialler, dialled):
    dialler.search(["there"], 0.0)
    answer(dialler, dialled, dialler.datagrams_to_send(0.0), 0.0)
    now = 0.0
    for _ in range(len(SIZE_DELAYS_S) + 1):
        answer(dialler, dialled, dialler.datagrams_to_send(now), now, fits=1199)
        now = dialler.get_timer() or now
    assert dialler.get_timer() is None
    assert dialler.next_event() is None


def test_an_answer_counts_once_from_where_it_was_asked_and_at_its_size(dialler, dialled):
    dialler.search(["there"], 0.0)
    ((request, _),) = dialler.datagrams_to_send(0.0)
    dialled.receive_check(KEY.parse(request), "dialler", 0.0, searching=False)
    ((reply, _),) = dialled.datagrams_to_send(0.0)
    dialler.receive_check(KEY.parse(reply), "elsewhere", 0.0, searching=False)
    assert len(dialler.datagrams_to_send(0.05)) == 1  # still searching
    dialler.receive_check(KEY.parse(reply), "there", 0.1, searching=False)
    dialler.datagrams_to_send(0.1)
    dialler.receive_check(KEY.parse(reply), "there", 0.1, searching=False)
    assert dialler.next_event() is None


def test_our_own_checks_sent_back_prove_nothing(dialler):
    dialler.search(["mirror"], 0.0)
    ((request, _),) = dialler.datagrams_to_send(0.0)
    dialler.receive_check(KEY.parse(request), "mirror", 0.0, searching=True)
    assert dialler.datagrams_to_send(0.0) == []


def test_a_request_from_an_unknown_address_is_answered_and_searched_in_turn(dialler, dialled):
    dialler.search(["there"], 0.0)
    ((request, _),) = dialler.datagrams_to_send(0.0)
    dialled.receive_check(KEY.parse(request), "its NAT", 0.0, searching=True)
    sent = dialled.datagrams_to_send(0.0)
    assert [address for _, address in sent] == ["its NAT", "its NAT"]


def test_addresses_are_not_collected_without_end(dialler):
    dialler.search(range(1000), 0.0)
    assert len(dialler.datagrams_to_send(0.0)) == MAX_PATHS
    for address in range(1000):
        dialler.suspect(address, 1200, 1.0)
    assert len({address for _, address in dialler.datagrams_to_send(1.0)}) == MAX_PATHS


def test_a_larger_answer_that_comes_late_counts(dialler, dialled):
    dialler.search(["there"], 0.0)
    answer(dialler, dialled, dialler.datagrams_to_send(0.0), 0.0)
    large, _, small, _ = dialler.datagrams_to_send(0.0)
    answer(dialler, dialled, [small], 0.1)
    answer(dialler, dialled, [large], 0.2)
    assert [dialler.next_event().datagram_bytes for _ in range(2)] == [1200, 1452]
    answer(dialler, dialled, [small], 0.3)
    assert dialler.next_event() is None


@pytest.mark.parametrize("dials", [True, False])
def test_who_insists_checks_again_what_answered_once_and_what_was_given_up(dials):
    asker, other = (Paths(KEY, dials=d, sizes=SIZES) for d in (dials, not dials))
    asker.insist("there", 0.0)
    asker.insist("there", 0.0)
    sent = asker.datagrams_to_send(0.0)
    assert len(sent) == 1
    answer(asker, other, sent, 0.0)
    if dials:  # it goes on at once, until it has what it needs or has given up
        for _ in range(len(SIZE_DELAYS_S) + 1):
            asker.insist("there", now := asker.get_timer())
            asker.datagrams_to_send(now)
    assert asker.get_timer() is None
    asker.insist("there", 9.0)
    assert [len(data) for data, _ in asker.datagrams_to_send(9.0)] == [CHECK_BYTES]


def test_a_suspected_address_is_asked_once_however_long_it_takes_to_answer(dialler, dialled):
    dialler.suspect("new", 1452, 10.0)
    sent = dialler.datagrams_to_send(10.0)
    dialler.suspect("new", 1452, 10.9)
    answer(dialler, dialled, sent, 11.0)
    assert dialler.next_event().address == "new"


def test_a_suspected_address_is_asked_at_the_connections_size_and_not_for_every_datagram(dialler, dialled):
    dialler.suspect("new", 1452, 10.0)
    dialler.suspect("new", 1452, 10.1)
    sent = dialler.datagrams_to_send(10.1)
    assert [len(data) for data, _ in sent] == [1452, 1452, 1200, 1200]
    answer(dialler, dialled, sent, 10.2)
    assert dialler.next_event().address == "new"
    dialler.suspect("new", 1452, 10.0 + SUSPECT_EVERY_S)
    assert {address for _, address in dialler.datagrams_to_send(10.0 + SUSPECT_EVERY_S)} == {"new"}
