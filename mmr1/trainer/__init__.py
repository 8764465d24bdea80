"""The training loop, the algorithms, the policy and its update."""
