"""From prompts to a batch to learn from: rollouts, rewards, experience."""
