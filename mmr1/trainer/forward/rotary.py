"""Rotary embeddings whose angles go with the length of the longest sequence of a forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmr1.trainer.forward.sequences import GroupInput


def check_lengths(config: Any, groups: Sequence[GroupInput]) -> None:
    """Refuse sequences that would turn the angles of others, or be turned by how long they are.

    Dynamic NTK scaling makes the angles of every token anew for each length beyond the original
    one; LongRoPE has two sets of them, on either side of it. A forward takes the longest sequence's
    for all.

    Raises:
        ValueError: Sequences are on both sides of that length, or, of dynamic scaling, beyond it.
    """
    language = config.get_text_config()
    for rope in _ropes(language):
        kind = str(rope.get("rope_type"))
        if kind not in ("dynamic", "longrope"):
            continue
        named = "original_max_position_embeddings"
        limit = rope.get(named) or getattr(language, named, None)
        limit = int(limit or language.max_position_embeddings)
        lengths = [len(g.prompt_ids) + len(row) for g in groups for row in g.completions]
        if max(lengths) > limit and (kind == "dynamic" or min(lengths) <= limit):
            raise ValueError(
                f"the model's rotary embedding is of the type '{kind}', and a sequence of "
                f"{max(lengths)} tokens beyond its original {limit} would change what others "
                "compute; lower rollout.max_prompt_length and rollout.max_response_length to "
                f"{limit} together"
            )


def _ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """Those of all types of layers."""
    parameters = getattr(config, "rope_parameters", None)
    if isinstance(parameters, Mapping):
        yield parameters
        yield from (value for value in parameters.values() if isinstance(value, Mapping))
