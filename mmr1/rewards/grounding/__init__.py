"""Boxes and segments of time against the gold ones."""
