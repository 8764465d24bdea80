"""The laboratory: comparisons of configurations, and claims of papers put to the test."""
