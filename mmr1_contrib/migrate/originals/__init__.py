"""Recipes beside the projects that they reproduce: ``mmr1 recipe check``."""
