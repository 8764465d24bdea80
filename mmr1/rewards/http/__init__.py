"""Calls of other machines: deadlines, retries, and replies that are bounded."""
