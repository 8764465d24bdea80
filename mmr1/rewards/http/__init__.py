"""Calls to other machines: deadlines, retries, and bounded replies."""
