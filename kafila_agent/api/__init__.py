"""The OpenAI-compatible HTTP API on localhost, and the page there."""
