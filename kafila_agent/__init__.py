"""The agent on a member's machine, and ``kafila-ctl``, which talks to it."""
