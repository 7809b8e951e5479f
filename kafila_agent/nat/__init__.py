"""What stands between this machine and the others, and what can be had of it. Never imports torch."""
