"""Verifiable rewards and the sandbox that runs them. Imports neither torch nor ray."""
