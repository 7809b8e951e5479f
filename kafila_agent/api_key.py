"""The key of an API that other machines reach: from a file or the environment, never from a command line.

A command line shows in the list of processes; the key is taken out of the environment too, so that no child
process inherits it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

VARIABLE = "KAFILA_API_KEY"
MIN_LENGTH = 16
_OTHERS = stat.S_IRWXO


class ApiKeyError(ValueError):
    """There is a key, and it cannot be used; the message names the file or variable, never the key."""


def read_api_key(file: Path | None) -> str | None:
    """The key in ``file``, or in KAFILA_API_KEY if no file is given; None if there is neither.

    Raises ApiKeyError if the file cannot be read, if everybody on this machine can, or if it holds no key.
    """
    variable = os.environ.pop(VARIABLE, None)
    if file is None:
        return None if variable is None else _checked(variable, VARIABLE)
    try:
        if stat.S_IMODE(file.stat().st_mode) & _OTHERS:
            raise ApiKeyError(f"{file} is open to every user of this machine: chmod o= {file}")
        return _checked(file.read_text("ascii"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ApiKeyError(f"{file} cannot be read as an API key: {reason}") from error


def _checked(text: str, source: str) -> str:
    key = text.strip()
    if len(key) < MIN_LENGTH or any(not "!" <= character <= "~" for character in key):
        raise ApiKeyError(
            f"{source} holds no API key: {MIN_LENGTH} or more printable ASCII characters without spaces,"
            " as `openssl rand -hex 32` makes them"
        )
    return key
