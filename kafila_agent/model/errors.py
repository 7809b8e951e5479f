"""The one error of this package, and one way to it."""

from __future__ import annotations


class ModelError(Exception):
    """A checkpoint that cannot be served; the message names the file or family and the next step."""


def unreadable(place: object, error: OSError) -> ModelError:
    """What to say of a file that the agent's user is not let into, or that the disk does not give."""
    return ModelError(
        f"{error.filename or place}: cannot be read ({error.strerror}); let the user that the agent runs as read it, or"
        " put the model below one of its --model-dir"
    )
