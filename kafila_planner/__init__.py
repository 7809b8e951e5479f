"""Pure planning: frozen facts in, a ring plan or a refusal out. No clock, no I/O, no randomness."""
