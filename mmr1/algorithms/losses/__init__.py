"""The losses: each file is one, and says all about it."""
