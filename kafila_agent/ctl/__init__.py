"""``kafila-ctl``: the commands. Starts without importing torch."""
