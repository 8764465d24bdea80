"""Environments that answer the policy between its turns: tools, and classes with a state."""
