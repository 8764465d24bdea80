"""What is trained: policy, critic and reference, their optimizer and their state."""
