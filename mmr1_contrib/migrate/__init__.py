"""``mmr1 migrate``: the configurations of other projects as ours."""
