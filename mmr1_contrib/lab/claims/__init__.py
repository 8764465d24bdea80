"""Claims of papers: comparisons with hypotheses that were written before the runs."""
