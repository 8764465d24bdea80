"""The dataset preparation CLI: one converter per file."""
