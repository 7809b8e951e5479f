"""The one error of this room that others catch."""


class EdgeError(Exception):
    """An edge that cannot be had, or is no more."""
