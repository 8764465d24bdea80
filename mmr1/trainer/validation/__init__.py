"""Held-out accuracy, with intervals."""
