"""Decoding completions of groups through a transformers model.

Keys and values of a prompt are kept once for its group; those of each completion lie beside them,
written in place. A new token attends to both in two calls, merged by their log-sum-exp, so neither
the prompt's keys nor its share of a step's work is repeated for the completions.

A step is the model's own code on one sequence, whose tokens are the newest of all rows. Its
attention is registered with transformers as ``"mmr1_decoding"``; it must be causal and nothing
else, which the first step checks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.masking_utils import causal_mask_function

from mmr1.attention import additive_mask, block_forward, merge
from mmr1.vision.families.family import ReadPrompt
from mmr1.vision.families.loading import is_admitted, model_parts, unwrapped
from mmr1.vision.families.rows import arguments_of_rows

NAME = "mmr1_decoding"
GROWTH = 64  # tokens by which the completions' room grows

Layers = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer: ``[G, H_kv, P, D]``."""


class NotPlainError(ValueError):
    """A layer's attention is not causal and nothing else."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the model's attention {what}, which mmr1's attention does not compute; take a model "
            "with full causal attention in all layers (docs/models.md)"
        )


@dataclass(frozen=True, slots=True)
class PrefillState:
    """G prompts that went through the model, padded on the left to the longest, P tokens.

    Attributes:
        logits: ``[G, V]`` float32, of the first token of completions.
        layers: Keys and values.
        real: ``[G, P]`` bool, False on padding.
        positions: ``[..., 1, G]``, of the first token after each, as the language model takes them.
    """

    logits: torch.Tensor
    layers: Layers
    real: torch.Tensor
    positions: torch.Tensor

    @staticmethod
    def joined(parts: Sequence[PrefillState]) -> PrefillState:
        longest = max(part.real.shape[1] for part in parts)

        def filled(tensor: torch.Tensor, after: int) -> torch.Tensor:
            """Padded in the dimension of tokens, which so many others follow."""
            missing = longest - tensor.shape[-1 - after]
            return pad(tensor, (*(0, 0) * after, missing, 0))

        columns = zip(*(part.layers for part in parts), strict=True)
        return PrefillState(
            torch.cat([part.logits for part in parts]),
            [
                (
                    torch.cat([filled(k, 1) for k, _ in own]),
                    torch.cat([filled(v, 1) for _, v in own]),
                )
                for own in columns
            ],
            torch.cat([filled(part.real, 0) for part in parts]),
            torch.cat(_broadcast([part.positions for part in parts]), -1),
        )


def _broadcast(positions: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return positions with rows for M-RoPE where any has them: a text may have one for all."""
    widest = max(positions, key=torch.Tensor.dim).shape[:-1]
    return [own.expand(*widest, -1) for own in positions]


class Decoder:
    """The unfinished completions of a batch of groups, and one step of all of them.

    Rows are completions, those of a group next to each other. B rows, G groups, P tokens of the
    longest prompt.

    Args:
        model: The transformers model, as it is or inside a peft model.
        prefilled: The prompts.
        sizes: ``[G]``, completions of each group.
        longest: Tokens of the longest sequence that there will be, its prompt included.
    """

    def __init__(
        self, model: Any, prefilled: PrefillState, sizes: torch.Tensor, longest: int
    ) -> None:
        self._parts, self._longest = model_parts(model), longest
        modules = self._parts.language_model.modules()
        configs = {id(m.config): m.config for m in modules if hasattr(m, "config")}
        self._configs = [c for c in configs.values() if hasattr(c, "_attn_implementation")]
        self._prompts = list(prefilled.layers)
        real, dtype = prefilled.real, self._prompts[0][0].dtype
        self._padding = None if real.all() else additive_mask(real, dtype)
        groups = torch.arange(len(sizes), device=sizes.device)
        self._group = groups.repeat_interleave(sizes)  # [B], ascending
        self._place_rows()
        self._positions = prefilled.positions[..., self._group]
        self._attended: list[int] = []
        self._checked = False
        self._length = 0
        room = (len(self._group), self._prompts[0][0].shape[1], 0, self._prompts[0][0].shape[3])
        self._completions = [(k.new_empty(room), v.new_empty(room)) for k, v in self._prompts]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed each row's newest token, ``[B]``; returns the logits ``[B, V]`` of the next."""
        if self._length == self._completions[0][0].shape[2]:
            room = (0, 0, 0, GROWTH)
            self._completions = [(pad(k, room), pad(v, room)) for k, v in self._completions]
        self._attended = []
        with self._stepping():
            hidden = self._parts.language_model(
                inputs_embeds=self._parts.embed_tokens(tokens)[None],
                position_ids=self._positions,
                # Without one, positions that begin again would be taken for other sequences.
                attention_mask=torch.ones_like(tokens)[None],
                use_cache=False,
            ).last_hidden_state
        if sorted(self._attended) != [*range(len(self._prompts))] or not self._checked:
            raise NotPlainError(f"was called by the layers {self._attended}")
        self._length += 1
        self._positions = self._positions + 1
        return self._parts.lm_head(hidden[0])

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Give the language model the attention of this decoder inside the block."""
        own = [config._attn_implementation for config in self._configs]
        _steps.append(self)
        try:
            for config in self._configs:
                config._attn_implementation = NAME
            yield
        finally:
            _steps.pop()
            for config, name in zip(self._configs, own, strict=True):
                config._attn_implementation = name

    def check(self, rule: Callable[..., torch.Tensor]) -> None:
        """Check the rule of a mask: the last token of the longest sequence sees all before it.

        Args:
            rule: transformers' mask function: batch row, head, query and key to True where seen.
        """
        if self._length == 0 and rule is not causal_mask_function:
            places = torch.arange(self._longest, device=self._group.device)
            try:
                seen = rule(places[:1], places[:1], places[-1:], places)
            except Exception as error:  # it may look up what it knows of tokens that are not here
                raise NotPlainError("has its own mask") from error
            if not seen.all():
                raise NotPlainError(f"has a window of less than {self._longest} tokens")
        self._checked = True

    def keep(self, alive: torch.Tensor) -> None:
        """Drop the rows that are not ``alive``, ``[B]`` bool, and groups without a row left."""
        self._completions = [(k[alive], v[alive]) for k, v in self._completions]
        self._positions = self._positions[..., alive]
        groups, self._group = self._group[alive].unique(return_inverse=True)
        if len(groups) < len(self._prompts[0][0]):
            self._prompts = [(k[groups], v[groups]) for k, v in self._prompts]
            self._padding = None if self._padding is None else self._padding[groups]
        self._place_rows()

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Keep the new tokens' keys and values, and attend to all there are.

        Args:
            query: ``[B, H, D]``.
            key, value: ``[B, H_kv, D]``.

        Returns:
            ``[B, H, D]``.
        """
        self._attended.append(layer)
        keys, values = self._completions[layer]
        keys[:, :, self._length], values[:, :, self._length] = key, value
        now = self._length + 1
        # The heads that share a key are queries of the same attention.
        rows = query.unflatten(1, (key.shape[1], -1))
        own = block_forward(rows, keys[:, :, :now], values[:, :, :now], None, False, scale)
        out, _ = merge(own, self._attend_prompts(layer, rows, scale))
        return out.flatten(1, 2)

    def _attend_prompts(
        self, layer: int, rows: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``[B, H_kv, r, D]`` queries to their group's prompt, those of a group in one go."""
        keys, values = self._prompts[layer]
        placed = rows.new_zeros(len(keys) * self._widest, *rows.shape[1:])
        queries = placed.index_copy_(0, self._places, rows).unflatten(0, (-1, self._widest))
        attended = block_forward(
            queries.transpose(1, 2).flatten(2, 3), keys, values, self._padding, False, scale
        )
        # [G, H_kv, widest * r, ...] back to rows
        by_row = (x.unflatten(2, (self._widest, -1)) for x in attended)
        out, lse = (x.transpose(1, 2).flatten(0, 1) for x in by_row)
        return out.index_select(0, self._places), lse.index_select(0, self._places)

    def _place_rows(self) -> None:
        """The place of each row in a table of groups by rows of the largest group."""
        counts = self._group.bincount(minlength=len(self._prompts[0][0]))
        first = counts.cumsum(0) - counts
        rank = torch.arange(len(self._group), device=counts.device) - first[self._group]
        self._widest = int(counts.max())
        self._places = self._group * self._widest + rank


_steps: list[Decoder] = []
"""That whose step is running."""


def decoding_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature; the rows of a step come as ``[1, H, B, D]``."""
    given = [n for n, x in kwargs.items() if x is not None and not isinstance(x, bool)]
    if more := sorted({*given} - _HARMLESS):
        raise NotPlainError(f"has a {more[0]}")
    if attention_mask is not None or query.shape[-1] != value.shape[-1]:
        raise NotPlainError("has its own mask, or values of another width")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows, keys, values = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
    return _steps[-1].attend(module.layer_idx, rows, keys, values, scale)[None], None


_HARMLESS = frozenset({"dropout", "sliding_window", "position_ids"})
"""What layers hand to their attention and that changes nothing here: a window is in the mask."""


def decoding_mask(
    *, mask_function: Callable[..., torch.Tensor] = causal_mask_function, **kwargs: Any
) -> None:
    """transformers' signature of a function that makes masks: there is none."""
    _steps[-1].check(mask_function)


@torch.no_grad()
def decodes_together(model: Any, longest: int) -> bool:
    """Whether a model without a packed family can decode rows of several prompts in one step.

    A probe must have admitted it, so its positions simply continue. Two tokens and a step after
    them show whether its attention is causal and nothing else.

    Args:
        model: A transformers model, as it is or inside a peft model.
        longest: Longest sequence, as of :class:`Decoder`.
    """
    base = unwrapped(model)
    if not is_admitted(base) or _scales_by_length(base.config.get_text_config()):
        return False
    ids = torch.arange(3, device=base.device) + base.get_input_embeddings().num_embeddings // 3
    try:
        begun = prefill_alone(base, ReadPrompt(ids[:2], ids[None, :2], 2))
        one = torch.ones(1, dtype=torch.int64, device=base.device)
        Decoder(base, begun, one, longest).step(ids[2:])
    except NotPlainError:
        return False
    return True


def _scales_by_length(config: Any) -> bool:
    """True if the rotary angles of a forward are those of its longest sequence."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [rope.get("rope_type") for rope in (parameters, *parameters.values())
             if isinstance(rope, Mapping)]  # fmt: skip
    return not {"dynamic", "longrope"}.isdisjoint(kinds)


def prefill_alone(model: Any, prompt: ReadPrompt) -> PrefillState:
    """One prompt through a transformers model's own forward, which finds its positions itself.

    Raises:
        NotPlainError: If its layers keep anything but the keys and values of all tokens.
    """
    length, device = len(prompt.ids), model.device
    ids = prompt.ids[None].to(device)
    positions = [torch.arange(length, device=device)[None]]

    def look(_: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        if (own := kwargs.get("position_ids")) is not None:
            positions.append(own)

    given = arguments_of_rows([[(length, prompt.arguments)]], length, device, model.dtype)
    hook = model.get_decoder().register_forward_pre_hook(look, with_kwargs=True)
    try:
        logits, layers = _run(model, ids, torch.ones_like(ids), given)
    finally:
        hook.remove()
    real = torch.ones_like(ids, dtype=torch.bool)
    return PrefillState(logits, layers, real, positions[-1][..., -1:] + 1)


def takes_positions(model: Any) -> bool:
    """True if the model's forward can be told where its tokens stand."""
    return _takes(model, "position_ids")


def _takes(model: Any, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def prefill_texts(model: Any, prompts: Sequence[ReadPrompt]) -> PrefillState:
    """Prompts of a text model that ``takes_positions``, in one forward.

    Raises:
        NotPlainError: If :func:`prefill_alone` raises it.
    """
    ids, real = (
        pad_sequence(rows, batch_first=True, padding_side="left").to(model.device)
        for rows in ([p.ids for p in prompts], [torch.ones_like(p.ids) for p in prompts])
    )
    positions = (real.cumsum(1) - 1).clamp(min=0)
    logits, layers = _run(model, ids, real, {"position_ids": positions})
    return PrefillState(logits, layers, real.bool(), positions[:, -1][None] + 1)


def _run(
    model: Any, ids: torch.Tensor, real: torch.Tensor, given: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, Layers]:
    """Logits ``[G, V]`` after prompts ``[G, P]``, and what the layers keep of them."""
    cache = DynamicCache(config=model.config)
    last = {"logits_to_keep": 1} if _takes(model, "logits_to_keep") else {}
    out = model(
        input_ids=ids, attention_mask=real, past_key_values=cache, use_cache=True, **given, **last
    )
    if any(type(x) not in (DynamicLayer, DynamicSlidingWindowLayer) for x in cache.layers):
        raise NotPlainError("keeps a state")
    layers = [(x.keys, x.values) for x in cache.layers]
    length = ids.shape[1]
    if not layers or any(x is None or x.shape[2] != length for both in layers for x in both):
        raise NotPlainError("has a window")
    return out.logits[:, -1].float(), layers


@contextmanager
def transposed_weights(model: Any) -> Iterator[None]:
    """Transpose the text model's linear layers in memory, inside the block.

    On a CPU that makes them faster for the few rows of a decoding step: 64 rows of a model with 12M
    parameters took 28 ms a step instead of 33, and laying the weights out 30 ms once. Values and
    shapes are what they were. On other devices nothing happens.
    """
    parts = model_parts(model)
    tied = parts.embed_tokens.weight
    layers = [m for m in parts.language_model.modules() if isinstance(m, torch.nn.Linear)]
    weights = [layer.weight for layer in (*layers, parts.lm_head) if layer.weight is not tied]
    if tied.device.type != "cpu":
        weights = []
    try:
        for weight in weights:
            weight.data = weight.data.t().contiguous().t()
        yield
    finally:
        for weight in weights:
            weight.data = weight.data.contiguous()


AttentionInterface.register(NAME, decoding_attention)
AttentionMaskInterface.register(NAME, decoding_mask)
