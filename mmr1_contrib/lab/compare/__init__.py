"""``mmr1 compare``: configurations over the same seeds, and how sure their differences are."""
