"""Experts of a mixture in the forward of a batch: the engine's choice, and the load of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from mmr1.routers import Routers, Routing
from mmr1.trainer.forward.sequences import CompletionStates, GroupInput


@dataclass(frozen=True, slots=True)
class RouterUse:
    """Use of routers in a forward.

    Attributes:
        compares: Measures for how many tokens the engine chose other experts.
        replays: Computes with the experts that the engine chose.
        balances: Computes the load-balancing loss.
    """

    compares: bool = False
    replays: bool = False
    balances: bool = False

    def routing(self, groups: Sequence[GroupInput], packs: bool) -> Routing:
        """Return the routing of a forward of the groups, packed or padded."""
        known = self.replays and all(group.experts is not None for group in groups)
        return Routing(_engine_experts(groups, packs) if known else None)


def expert_gap(
    groups: Sequence[GroupInput], packs: bool, routing: Routing, states: CompletionStates
) -> torch.Tensor | None:
    """``[N]``: the share of layers whose experts differ from the engine's, where a token is read.

    A token is read at the state that it is predicted from. None for groups that no engine sampled.
    """
    if any(group.experts is None for group in groups):
        return None
    gaps = routing.gap(_engine_experts(groups, packs))
    return gaps.index_select(0, states.rows)


def load_balance(
    groups: Sequence[GroupInput], packs: bool, routing: Routing, routers: Routers
) -> torch.Tensor:
    """transformers' load-balancing loss of a batch's tokens, those of each prompt once.

    So it does not depend on whether the forward shares prompts, and is that of the tokens that go
    through the experts where it does. The last token of a completion does not.
    """
    counts = None if packs else _counting(groups)
    return routers.balance(routing, counts)


def computed_tokens(groups: Sequence[GroupInput]) -> int:
    """The number of tokens that :func:`load_balance` is the mean of."""
    return sum(len(g.prompt_ids) + sum(len(row) - 1 for row in g.completions) for g in groups)


def _engine_experts(groups: Sequence[GroupInput], packs: bool) -> torch.Tensor:
    """``[T, L, k]`` for the tokens of a forward, in its order; at padding any."""
    prefixes: list[torch.Tensor] = []
    suffixes: list[torch.Tensor] = []
    for group in groups:
        assert group.experts is not None, "the caller asks"
        prompt, own = group.experts
        if not packs:
            rows = [torch.cat([prompt, row, row.new_zeros(1, *row.shape[1:])]) for row in own]
            prefixes.append(pad_sequence(rows, batch_first=True).flatten(0, 1))
        elif len(own) == 1:  # it continues in its prefix
            prefixes += [prompt, *own]
        else:
            prefixes.append(prompt)
            suffixes += own
    return torch.cat([*prefixes, *suffixes])


def _counting(groups: Sequence[GroupInput]) -> torch.Tensor:
    """``[T]``, 1 at the tokens of each prompt's first row, and of completions but their last."""
    counts = []
    for group in groups:
        lengths = [len(row) for row in group.completions]
        rows = torch.zeros(len(lengths), len(group.prompt_ids) + max(lengths))
        for n, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            start = 0 if n == 0 else len(group.prompt_ids)
            row[start : len(group.prompt_ids) + length - 1] = 1
        counts.append(rows.flatten())
    return torch.cat(counts)
