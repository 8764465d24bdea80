"""Styles of tools and environments of other projects; they run in the sandbox."""
