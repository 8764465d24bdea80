"""Reward functions for choices and for plain text."""
