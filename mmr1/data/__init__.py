"""Canonical records, their sources, prompt templates and the sampler."""
