"""The advantages: each file is one, and says all about it."""
