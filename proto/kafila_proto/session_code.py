"""The session code, ``number-word-word``: short enough to read out, safe to use once.

The number goes to the rendezvous, which finds the session by it. The words never leave the members'
machines: they are the password of the key exchange in pake.py. Any word is known by its first four letters,
so what was misheard after them does no harm.
"""

from __future__ import annotations

import difflib
import re
import secrets
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

NUMBER_DIGITS = 6
WORDS_IN_CODE = 2
PREFIX_LENGTH = 4

_SEPARATORS = re.compile(r"[\s\-_,./]+")
_EXAMPLE = "a code looks like 123456-walnut-otter"


class SessionCodeError(ValueError):
    """Text that is not a session code."""


@dataclass(frozen=True, slots=True)
class SessionCode:
    """A code: six digits and words of the list, which stay out of repr, hence of logs."""

    number: str
    words: tuple[str, ...] = field(repr=False)

    def __str__(self) -> str:
        """The code as it is read out."""
        return "-".join((self.number, *self.words))


def make_number() -> str:
    """A random number of a code, six digits."""
    return f"{secrets.randbelow(10**NUMBER_DIGITS):0{NUMBER_DIGITS}}"


def check_number(text: str) -> str:
    """``text``, if it is the number of a code: a rendezvous gives it. Raises SessionCodeError."""
    if not (len(text) == NUMBER_DIGITS and text.isascii() and text.isdigit()):
        raise SessionCodeError(f"a code's number is {NUMBER_DIGITS} digits, not {text[:20]!r}")
    return text


def make_words() -> tuple[str, ...]:
    """The secret half of a new code."""
    return tuple(secrets.choice(word_list()) for _ in range(WORDS_IN_CODE))


def password(words: tuple[str, ...]) -> bytes:
    """The words as the key exchange takes them."""
    return "-".join(words).encode("ascii")


def parse_session_code(text: str) -> SessionCode:
    """The code a person typed, whatever its case and separators; four letters of a word are enough.

    Raises SessionCodeError naming the part that is wrong, with near words of the list.
    """
    parts = [part for part in _SEPARATORS.split(text.strip().lower()) if part]
    digits = 0
    while digits < len(parts) and parts[digits].isascii() and parts[digits].isdigit():
        digits += 1  # "123 456 walnut otter": a number read out in groups
    number, words = "".join(parts[:digits]), parts[digits:]
    if len(number) != NUMBER_DIGITS:
        raise SessionCodeError(f"a code starts with {NUMBER_DIGITS} digits, not {number!r}: {_EXAMPLE}")
    if len(words) != WORDS_IN_CODE:
        raise SessionCodeError(
            f"a code has {WORDS_IN_CODE} words after its number, here are {len(words)}: {_EXAMPLE}"
        )
    return SessionCode(number, tuple(find_word(word) for word in words))


def find_word(text: str) -> str:
    """The word of the list that ``text`` (lower case) means. Raises SessionCodeError with near words."""
    found = _words_by_prefix().get(text[:PREFIX_LENGTH])
    if found is not None:
        return found
    near = difflib.get_close_matches(text, word_list(), n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "ask the host to read the code out again"
    raise SessionCodeError(f"{text!r} is not a word of session codes: {hint}")


@cache
def word_list() -> tuple[str, ...]:
    """Every word of codes, sorted; no two start with the same four letters."""
    return tuple(resources.files("kafila_proto").joinpath("words.txt").read_text("ascii").split())


@cache
def _words_by_prefix() -> dict[str, str]:
    return {word[:PREFIX_LENGTH]: word for word in word_list()}
