"""Reading fields of untrusted JSON, so that every complaint names the field it is about.

A path reads as the document does: `members[2].bandwidth_bytes_per_s`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

MAX_BYTES = 10**15
"""A petabyte: above it a size is a mistake (a unit, a sign bit), not a machine."""
MAX_SECONDS = 3600.0


class FieldError(ValueError):
    """A field is missing or is not what it must be; the message begins with its path."""


class Required:
    """The default of a field that has none."""


REQUIRED = Required()


def _shown(value: object) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def check_number(value: object, path: str, low: float, high: float, *, whole: bool = False) -> float | int:
    """`value` if it is a number within [low, high], as an int if `whole`; FieldError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(f"{path}: must be a number, not {_shown(value)}")
    if not low <= value <= high:  # false for NaN too
        raise FieldError(f"{path}: must be between {low:g} and {high:g}, not {_shown(value)}")
    if not whole:
        return value
    if math.floor(value) != value:
        raise FieldError(f"{path}: must be a whole number, not {_shown(value)}")
    return int(value)


_KEYS_LOOKED_AT = 16


class Fields:
    """One JSON object: typed access to its fields. Absent and null both mean the default."""

    def __init__(self, value: object, path: str, known: Collection[str] = ()) -> None:
        self._path = path
        if not isinstance(value, Mapping):
            raise FieldError(f"{path or 'document'}: must be an object, not {_shown(value)}")
        self._values: Mapping[str, Any] = value
        unknown = [key for key in value if key not in known and str(key).isprintable()] if known else []
        if unknown:
            self._check_misspelt(unknown, known)

    def _check_misspelt(self, unknown: list[str], known: Collection[str]) -> None:
        """Strange fields are someone else's and ignored; near misses of ours are mistakes."""
        from difflib import get_close_matches  # rarely needed, so not paid for at every start

        absent = [key for key in known if key not in self._values]
        for key in unknown[:_KEYS_LOOKED_AT]:  # a stranger may send thousands, and looking takes its time
            if meant := get_close_matches(str(key), absent, n=1, cutoff=0.9):
                raise FieldError(f"{self.path(str(key))}: no such field; did you mean {meant[0]}?")

    def path(self, key: str) -> str:
        """Where `key` of this object is in the document."""
        return f"{self._path}.{key}" if self._path else key

    def value(self, key: str, default: Any = REQUIRED) -> Any:
        """The raw value; FieldError if it is required and absent."""
        value = self._values.get(key)
        if value is not None:
            return value
        if isinstance(default, Required):
            raise FieldError(f"{self.path(key)}: is required")
        return default

    def number(self, key: str, low: float, high: float, default: Any = REQUIRED) -> Any:
        """A finite number within [low, high], or the default."""
        value = self.value(key, default)
        return value if value is default else check_number(value, self.path(key), low, high)

    def whole(self, key: str, low: float, high: float, default: Any = REQUIRED) -> Any:
        """A whole number within [low, high] (written 3 or 3.0), or the default."""
        value = self.value(key, default)
        return value if value is default else check_number(value, self.path(key), low, high, whole=True)

    def text(self, key: str, default: Any = REQUIRED) -> Any:
        """A non-empty string that a terminal can show (no control characters, no lone surrogates), or the
        default.
        """
        value = self.value(key, default)
        if value is not default and (not isinstance(value, str) or not value):
            raise FieldError(f"{self.path(key)}: must be a non-empty string, not {_shown(value)}")
        if value is not default and not value.isprintable():
            raise FieldError(f"{self.path(key)}: must be printable, not {_shown(value)}")
        return value

    def choice(self, key: str, choices: Collection[str], default: Any = REQUIRED) -> Any:
        """One of the given words, or the default."""
        value = self.text(key, default)
        if value is not default and value not in choices:
            raise FieldError(f"{self.path(key)}: must be one of {', '.join(choices)}, not {_shown(value)}")
        return value

    def flag(self, key: str, default: Any = REQUIRED) -> Any:
        """True or false, or the default."""
        value = self.value(key, default)
        if value is not default and not isinstance(value, bool):
            raise FieldError(f"{self.path(key)}: must be true or false, not {_shown(value)}")
        return value

    def items(self, key: str, default: Any = REQUIRED) -> Any:
        """A list, or the default."""
        value = self.value(key, default)
        if value is not default and not isinstance(value, list | tuple):
            raise FieldError(f"{self.path(key)}: must be a list, not {_shown(value)}")
        return value

    def per_block(
        self, key: str, blocks: int, low: float, high: float, default: Any = REQUIRED, *, whole: bool = True
    ) -> Any:
        """One number for all blocks, or a list with one for each: a tuple of `blocks` numbers."""
        value = self.value(key, default)
        if value is default:
            return value
        if not isinstance(value, list | tuple):
            return (check_number(value, self.path(key), low, high, whole=whole),) * blocks
        if len(value) != blocks:
            raise FieldError(f"{self.path(key)}: has {len(value)} entries for {blocks} blocks")
        return tuple(
            check_number(entry, f"{self.path(key)}[{index}]", low, high, whole=whole)
            for index, entry in enumerate(value)
        )
