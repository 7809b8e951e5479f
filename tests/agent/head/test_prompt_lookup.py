from __future__ import annotations

import random

import pytest

from kafila_agent.head.prompt_lookup import LONGEST, RETURN, SHORTEST, STRAY_TOKENS, PromptLookup
from kafila_agent.head.sequence import Sequence

WORDS = list(range(1000, 1100))


def lookup(*tokens: int) -> PromptLookup:
    made = PromptLookup()
    made.learn(tokens)
    return made


@pytest.mark.parametrize("match", range(SHORTEST + 3))
def test_it_is_silent_below_the_shortest_match(match):
    proposed = lookup(*WORDS, 5, *WORDS[20 : 20 + match]).propose([], 4)
    assert proposed == (WORDS[20 + match : 24 + match] if match >= SHORTEST else [])


def test_the_longest_match_wins_and_of_equal_ones_the_latest():
    end = list(range(10))
    proposer = lookup(1, *end, 70, *range(5), 2, 3, 4, 5, 6, 7, 8, 9, 71, 0, 1, *end[2:], 72, 50, 1, *end)
    assert proposer.propose([], 1) == [70], "with the 1 before it, the first is the longest"
    proposer = lookup(*end, 70, *end, 71, 50, *end)
    assert proposer.propose([], 1) == [71]


def test_guesses_count_as_the_end_of_what_is_looked_for_and_are_not_learnt():
    proposer = lookup(*WORDS, *WORDS[:3])
    assert proposer.propose([], 5) == []
    assert proposer.propose(WORDS[3:8], 5) == WORDS[8:13]
    assert proposer.propose([], 5) == []


def test_a_proposal_goes_on_from_its_own_end_as_long_as_it_matches():
    proposer = lookup(*WORDS, 5, *WORDS[:SHORTEST])
    assert proposer.propose([], 60) == WORDS[SHORTEST:][:60]
    proposer = lookup(*WORDS, *WORDS[:SHORTEST])
    assert proposer.propose([], 150) == [*WORDS[SHORTEST:], *WORDS[: 150 - len(WORDS) + SHORTEST]]


def test_a_loop_is_continued_round_and_round():
    proposer = lookup(*[1, 2, 3] * 6)
    assert proposer.propose([], 7) == [1, 2, 3, 1, 2, 3, 1]


def copied(*tokens: int) -> PromptLookup:
    """WORDS, then a copy of the first ten that ``tokens`` go on from."""
    proposer = lookup(*WORDS, 5, *WORDS[:10])
    assert proposer.propose([], 2) == WORDS[10:12]
    proposer.learn(tokens)
    return proposer


@pytest.mark.parametrize(
    ("strays", "back"),
    [([], 10), ([7], 10), ([7], 11), ([7, 8], 10), ([], 13), ([7] * 9, 18)],
    ids=["none", "put in", "replaced", "two put in", "left out", "a clause"],
)
def test_a_copy_that_has_left_its_source_comes_back_with_a_few_tokens_near_it(strays, back):
    assert copied(*strays, *WORDS[back : back + RETURN]).propose([], 3) == WORDS[back + RETURN :][:3]


def test_few_tokens_far_from_where_a_copy_left_its_source_say_nothing():
    far = 11 + STRAY_TOKENS
    assert copied(7, *WORDS[far : far + RETURN]).propose([], 3) == []
    assert copied(7, *WORDS[far : far + SHORTEST]).propose([], 3) == WORDS[far + SHORTEST :][:3]
    assert copied(7, WORDS[10]).propose([], 3) == []
    assert copied(*range(500, 502 + STRAY_TOKENS), *WORDS[10 : 10 + RETURN]).propose([], 3) == []


def test_it_follows_a_sequence_as_it_grows():
    sequence, proposer = Sequence(1, tuple(WORDS), 99), PromptLookup()
    sequence.chunk(len(WORDS))
    sequence.commit(5)
    assert not proposer.guess(sequence, 4)
    for token in WORDS[:8]:
        sequence.commit(token)
    assert proposer.guess(sequence, 4)
    assert sequence.line().guesses == WORDS[8:12]
    assert proposer.guess(sequence, 2)
    assert sequence.line().guesses == WORDS[8:14]


@pytest.mark.parametrize("seed", range(20))
def test_what_it_says_is_what_searching_all_of_the_text_says(seed):
    draw = random.Random(seed)
    tokens = draw.choices(range(2), k=draw.randrange(20, 120))
    best, following = SHORTEST - 1, None
    for end in range(len(tokens) - 1, 0, -1):
        length = 0
        while length < min(end, LONGEST) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length > best:
            best, following = length, tokens[end]
    assert lookup(*tokens).propose([], 1) == ([] if following is None else [following])
