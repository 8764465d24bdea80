"""Attention over blocks of unequal length that also tells its log-sum-exp."""
