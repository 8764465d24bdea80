"""A run's directory: checkpoints, resuming, stopping, what is written, shown and tracked."""
