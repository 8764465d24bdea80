"""Reports on runs, for people to look at."""
