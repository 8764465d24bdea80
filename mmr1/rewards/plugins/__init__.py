"""Reward functions of others: Python files, other trainers' dialects, HTTP."""
