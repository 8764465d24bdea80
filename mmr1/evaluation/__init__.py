"""``mmr1 eval``: models on benchmarks, with intervals and comparisons."""
