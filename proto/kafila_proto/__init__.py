"""What two programs say to each other: messages, datagrams, codes and certificates."""

from __future__ import annotations

PROTOCOL = 2  # of the messages between agents and rendezvous; unlike numbers do not talk
VERSION = "0.1.0"  # of the programs; pyproject.toml has the same
