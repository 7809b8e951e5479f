"""The OpenAI-compatible HTTP API on localhost."""
