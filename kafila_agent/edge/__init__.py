"""Edges between members: sockets, candidates, QUIC, frames. Knows bytes; never imports torch."""
