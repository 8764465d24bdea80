"""Losses on preferences, one a file: pure functions of log-probs."""
