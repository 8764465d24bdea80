"""The trained models: policy, critic and reference, their optimizer and their state."""
