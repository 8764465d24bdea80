"""The math reward: equality with the gold answer as mathematics."""
