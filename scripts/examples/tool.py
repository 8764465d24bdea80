"""A custom tool: ``environment: {tools: [scripts/examples/tool.py:lookup]}`` in the YAML."""

from __future__ import annotations

LENGTHS = {"AB": "3 cm", "BC": "4 cm"}


def lookup(side: str) -> str:
    """Look up the length of a side of the triangle.

    Args:
        side: Its two corners, such as AB.
    """
    return LENGTHS[side]  # what it raises is what the policy reads
