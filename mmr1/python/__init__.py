"""The door for Python and notebooks: ``mmr1.Trainer`` and ``mmr1.evaluate``."""
