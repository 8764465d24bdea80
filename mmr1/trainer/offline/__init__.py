"""Training without a rollout loop: demonstrations, preferences, rankings."""
