"""``mmr1-data``: prepare datasets as canonical records."""
