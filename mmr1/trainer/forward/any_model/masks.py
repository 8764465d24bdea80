"""Masks of a packed sequence, by the rule that the model's own code gives transformers.

transformers makes every mask of a *mask function* of two places. Here it is asked about the places
of each group's own sequences, so windows, chunks and pictures whose tokens see each other hold as
they would if each completion were alone. What comes back is a tensor only by its form: it carries
the layout to the attention function, to each type of layer its own, and into the recomputation of
a checkpointed layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function

from mmr1.trainer.forward.any_model.layout import GroupRows, PrefixSharingError, SharedLayout

Rule = Callable[[Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]
"""transformers' mask function: batch row, head, query and key to True where the key is seen."""

OWN = ("sdpa", "eager")
"""Attention implementations of transformers that ours stand before."""

_packing: list[SharedLayout] = []
"""That of the forward that is running: models make their masks on the way."""


def shared_name(own: str) -> str:
    """The name of our functions before those of ``own``. ("flash" in it would rearrange masks.)"""
    return f"mmr1_{own}"


@contextmanager
def packing(layout: SharedLayout) -> Iterator[None]:
    """Make masks inside the block those of ``layout``."""
    _packing.append(layout)
    try:
        yield
    finally:
        _packing.pop()


def running() -> SharedLayout | None:
    """The layout of the forward that is running."""
    return _packing[-1] if _packing else None


@dataclass(frozen=True)
class GroupMask:
    """The attention masks of a group; None where they are causal.

    Attributes:
        prompt: ``[P, P]`` bool.
        suffix: ``[C, P + C]`` bool: a suffix's tokens, to the prompt and to the suffix. With
            pictures in suffixes ``[n, C, P + C]``.
        first: The first place of the prompt that a suffix sees: with a window, few of them. It is
            found here once, as every layer of a GPU would wait for the number.
    """

    prompt: torch.Tensor | None
    suffix: torch.Tensor | None
    first: int = 0


class SharedMask(torch.Tensor):
    """Looks like a mask ``[1, 1, T, T]`` without taking its memory, and carries a layout.

    Model code may look at its form, cut it and hand it on. To compute with it would be wrong.
    """

    packed: SharedLayout
    groups: tuple[GroupMask, ...]

    @property
    def is_causal(self) -> bool:
        return all(group.prompt is None and group.suffix is None for group in self.groups)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _HANDED_ON:
            return args[0]
        if name not in _LOOKED_AT:
            raise PrefixSharingError(f"its layers compute with the mask themselves ({name})")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


_HANDED_ON = ("__getitem__", "to", "expand", "contiguous", "detach", "bool")
_LOOKED_AT = ("__get__", "size", "dim", "ndimension", "numel", "stride", "is_floating_point",
              "is_contiguous", "get_device", "__repr__", "__len__")  # fmt: skip


def _shared_mask(
    own: str,
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Rule = causal_mask_function,
    **kwargs: Any,
) -> torch.Tensor | None:
    """transformers' signature of a function that makes masks."""
    layout = running()
    known = () if layout is None else (layout.tokens, layout.own_tokens)
    if layout is None or q_length != kv_length or q_length not in known:
        if layout is not None:
            layout.stray.append(f"a mask of {q_length} by {kv_length}")
        mask: torch.Tensor | None = ALL_MASK_ATTENTION_FUNCTIONS[own](
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            mask_function=mask_function,
            **kwargs,
        )
        return mask
    places = layout.places
    look = torch.ones((), dtype=torch.bool, device=places.device)
    shared = look.expand(1, 1, q_length, kv_length).as_subclass(SharedMask)
    shared.packed = layout
    mask_of = _group_mask_with_pictures if layout.shows else _group_mask
    if q_length != layout.tokens and mask_function is not causal_mask_function:
        raise PrefixSharingError("its layers have masks of which a rank's part is not known")
    shared.groups = tuple(mask_of(mask_function, group, places) for group in layout.groups)
    return shared


def _group_mask(rule: Rule, group: GroupRows, places: torch.Tensor) -> GroupMask:
    if rule is causal_mask_function:
        return GroupMask(None, None)
    prompt, length = group.prompt.stop - group.prompt.start, group.longest
    device = places.device
    place = torch.arange(prompt + length, device=device)
    row = torch.cat([torch.arange(group.prompt.start, group.prompt.stop, device=device),
                     *group.index[:1]])  # fmt: skip
    seen = _evaluated(rule, place, row)
    causal = place[None, :] <= place[:, None]
    if (seen & ~causal)[prompt:].any() or seen[:prompt, prompt:].any():
        raise PrefixSharingError("tokens of a completion see those that follow them")
    masks = (seen[:prompt, :prompt], causal[:prompt, :prompt]), (seen[prompt:], causal[prompt:])
    of_prompt, of_suffix = (None if torch.equal(own, plain) else own for own, plain in masks)
    return GroupMask(of_prompt, of_suffix, _first_seen(of_suffix, prompt))


def _group_mask_with_pictures(rule: Rule, group: GroupRows, places: torch.Tensor) -> GroupMask:
    """Each suffix by itself: the tokens of its pictures may see each other."""
    if rule is causal_mask_function or not len(group.index):
        return _group_mask(rule, group, places)
    prompt = torch.arange(group.prompt.start, group.prompt.stop, device=places.device)
    place = torch.arange(len(prompt) + group.longest, device=places.device)
    seen = torch.stack([_evaluated(rule, place, torch.cat([prompt, own])) for own in group.index])
    of_suffixes = seen[:, len(prompt) :]
    first = _first_seen(of_suffixes, len(prompt))
    return GroupMask(seen[0, : len(prompt), : len(prompt)], of_suffixes, first)


def _first_seen(suffix: torch.Tensor | None, prompt: int) -> int:
    if suffix is None:
        return 0
    seen = suffix[..., :prompt].flatten(0, -2).any(0).nonzero()
    return int(seen[0]) if len(seen) else prompt


def _evaluated(rule: Rule, place: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """``[L, L]`` bool: the rule at the places of a sequence whose tokens are at those rows."""
    zero = torch.zeros((), dtype=torch.int64, device=place.device)
    query, key = (_Places.at(place.view(shape), row.view(shape)) for shape in ((-1, 1), (1, -1)))
    seen = rule(zero, zero, query, key)
    return _plain(seen).expand(len(place), len(place))


class _Places(torch.Tensor):
    """Places in a sequence: numbers for comparisons, rows of the packed sequence for look-ups.

    A window compares places; what is known of each token (its picture, say) is looked up by them.
    """

    rows: torch.Tensor

    @staticmethod
    def at(place: torch.Tensor, row: torch.Tensor) -> _Places:
        made: _Places = place.as_subclass(_Places)
        made.rows = row
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            looked_up, index = args
            rows = tuple(_row(i) for i in index) if isinstance(index, tuple) else _row(index)
            args = (looked_up, rows)
        with torch._C.DisableTorchFunctionSubclass():
            return _plain(func(*map(_plain, args), **(kwargs or {})))


def _row(index: Any) -> Any:
    return index.rows if isinstance(index, _Places) else index


def _plain(value: Any) -> Any:
    return value.as_subclass(torch.Tensor) if isinstance(value, _Places) else value


for _own in OWN:
    AttentionMaskInterface.register(shared_name(_own), partial(_shared_mask, _own))
