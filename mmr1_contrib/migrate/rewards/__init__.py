"""Styles of reward functions of other projects."""
