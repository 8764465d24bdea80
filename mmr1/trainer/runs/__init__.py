"""The directory of a run: checkpoints, resuming, stopping, records, display and trackers."""
