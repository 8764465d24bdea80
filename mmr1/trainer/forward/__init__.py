"""Forwards of whole groups, and the heads on them: what every score and update goes through."""
