"""Experiment trackers, one per file. Each imports its library only when it is started."""
