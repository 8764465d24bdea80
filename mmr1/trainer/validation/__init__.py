"""Held-out accuracy with confidence intervals."""
