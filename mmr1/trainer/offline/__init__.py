"""Training without rollouts of a loop: demonstrations, preferences, rankings."""
