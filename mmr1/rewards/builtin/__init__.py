"""The rewards: each is declared once, by a function and its decorator."""
