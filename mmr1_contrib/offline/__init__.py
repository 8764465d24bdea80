"""Learning from preferences, and the training of reward models."""
