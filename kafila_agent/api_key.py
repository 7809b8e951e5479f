"""The key of an API that other machines reach: from a file or the environment, never from a command line.

A command line shows in the list of processes; the key is taken out of the environment too, so that no child
process inherits it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kafila_proto.local_http import is_loopback

VARIABLE = "KAFILA_API_KEY"
CREDENTIAL = "api-key"
MIN_LENGTH = 16
_OTHERS = stat.S_IRWXO


class ApiKeyError(ValueError):
    """There is no key that can be used; the message names the file or variable, never the key."""


def read_api_key(file: Path | None) -> str | None:
    """The key in ``file``, or if none is given in systemd's credential or in KAFILA_API_KEY; None if there is none.

    Raises ApiKeyError if the file cannot be read, if everybody on this machine can, or if it holds no key.
    """
    variable = os.environ.pop(VARIABLE, None)
    if file is None and (credential := _credential()) is not None:
        return _checked(credential.read_text("ascii", "replace"), str(credential))
    if file is None:
        return None if variable is None else _checked(variable, VARIABLE)
    try:
        if stat.S_IMODE(file.stat().st_mode) & _OTHERS:
            raise ApiKeyError(f"{file} is open to every user of this machine: chmod o= {file}")
        return _checked(file.read_text("ascii"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ApiKeyError(f"{file} cannot be read as an API key: {reason}") from error


def require_api_key(host: str, key: str | None) -> None:
    """Raise ApiKeyError if other machines reach an API at ``host`` and it has no key."""
    if key is None and not is_loopback(host):
        raise ApiKeyError(
            f"other machines reach the API at {host}: give it a key (--api-key-file, or {VARIABLE} in the"
            " environment), or leave it at 127.0.0.1"
        )


def _credential() -> Path | None:
    """LoadCredential= of the unit; a blank one stands for none."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    file = Path(directory) / CREDENTIAL if directory else None
    return file if file is not None and file.exists() and file.read_bytes().strip() else None


def _checked(text: str, source: str) -> str:
    key = text.strip()
    if len(key) < MIN_LENGTH or any(not "!" <= character <= "~" for character in key):
        raise ApiKeyError(
            f"{source} holds no API key: {MIN_LENGTH} or more printable ASCII characters without spaces,"
            " as `openssl rand -hex 32` makes them"
        )
    return key
