"""The way from prompts to a batch to learn from: rollouts, rewards, experience."""
