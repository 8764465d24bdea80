"""Rewards of form: tags, length, repetition, key steps."""
