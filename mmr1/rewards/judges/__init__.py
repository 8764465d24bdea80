"""Rewards that ask a model behind an OpenAI-compatible server."""
