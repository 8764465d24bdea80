"""One rank's tokens of a packed sequence that a context has cut, for layers that know of neither.

Cut and attention are those of ``context_packing.py``, so the attention of all layers has to be
causal and nothing else. Embeddings and towers see the whole sequence on every rank; the language
model is given the rank's own tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmr1.trainer.forward.any_model.layout import PrefixSharingError
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.context_packing import ContextLayout, Cut, cut_layout
from mmr1.trainer.forward.packing import AttentionLayout


@dataclass(frozen=True)
class Part:
    """One rank's n tokens of a packed sequence of T.

    Attributes:
        context: The ranks that have the others.
        causal: Attention of its layers.
        tokens: T.
        rows: ``[n]`` int64, the tokens' places in the sequence; padding behind it repeats its last.
        gathered: ``[padded]`` int64, the index of each token among those of all ranks.
    """

    context: Context
    causal: ContextLayout
    tokens: int
    rows: torch.Tensor
    gathered: torch.Tensor

    @staticmethod
    def of(plain: AttentionLayout, context: Context, device: torch.device) -> Part:
        tokens = sum(plain.prefixes.q_lengths) + sum(plain.suffixes.q_lengths)
        cut = Cut(tokens, context.size)
        return Part(
            context,
            cut_layout(plain, cut, context, device),
            tokens,
            cut.tokens_of(context.rank).clamp(max=tokens - 1).to(device, non_blocking=True),
            cut.gathered().to(device, non_blocking=True),
        )

    @property
    def own_tokens(self) -> int:
        return len(self.rows)

    def read(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which rows ``[N]`` of the sequence are here, and where among the rank's tokens."""
        index = self.gathered[rows]
        here = index // self.own_tokens == self.context.rank
        return here, index[here] % self.own_tokens

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The language model's arguments for the rank's tokens, from those for the sequence.

        Raises:
            PrefixSharingError: If the model is given something of which a rank's part is not known.
        """
        return {name: self._own(name, value, given) for name, value in given.items()}

    def _own(self, name: str, value: Any, given: Mapping[str, Any]) -> Any:
        if name == "position_ids":
            return value.index_select(-1, self.rows)
        if name == "deepstack_visual_embeds" and value is not None:
            seen = given["visual_pos_masks"][0]
            rows = (seen.cumsum(0) - 1)[self.rows[seen[self.rows]]]
            return [features.index_select(0, rows) for features in value]
        if type(value) is torch.Tensor and value.shape[:2] == (1, self.tokens):
            return value.index_select(1, self.rows)
        if any(type(x) is torch.Tensor and x.dim() for x in _values(value)):
            raise PrefixSharingError(
                f"ranks do not cut '{name}', which its language model is given"
            )
        return value


def _values(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list | tuple) else [value]
