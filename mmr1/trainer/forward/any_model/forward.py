"""The packed forward by a model's own code: ``base_model`` once, on all groups as one sequence.

The model runs its tower, fills its placeholders and finds its positions itself. It must be told how
positions continue after a prompt (a hook before its decoder), who sees whom (``masks.py`` and
``attention.py``), and where a state begins (``recurrent.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from mmr1.trainer.forward.any_model.attention import IMPLEMENTATIONS, MORE_THAN_CAUSAL
from mmr1.trainer.forward.any_model.layout import PrefixSharingError, SharedLayout
from mmr1.trainer.forward.any_model.masks import packing
from mmr1.trainer.forward.any_model.part import Part
from mmr1.trainer.forward.any_model.recurrent import has_states, share_states
from mmr1.trainer.forward.body import body_of
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.packing import AttentionLayout, Packed, pack
from mmr1.trainer.forward.sequences import (
    CompletionStates,
    GroupInput,
    PaddedRows,
    Read,
    completion_batch,
)
from mmr1.trainer.forward.unshared import vision_in_graph
from mmr1.vision.families.loading import unwrapped
from mmr1.vision.families.rows import arguments_of_rows

CUTS_NOTHING = "resources.context_parallel_size=1"


def install(model: Any) -> None:
    """Let a transformers model take packed sequences, for good: checkpointed layers look their
    functions up again in the backward pass. Without a layout it works as before.

    Raises:
        PrefixSharingError: If the model's attention is one that ours cannot stand before.
    """
    decoder = model.get_decoder()
    modules = list(decoder.modules())
    configs = [m.config for m in modules if hasattr(m, "config")]
    configs.append(model.config.get_text_config())
    for config in {id(c): c for c in configs}.values():  # of the decoder: towers keep theirs
        own = getattr(config, "_attn_implementation", None)
        if own is None or own in IMPLEMENTATIONS.values():
            continue
        if own not in IMPLEMENTATIONS:
            raise PrefixSharingError(f"its attention is {own}")
        config._attn_implementation = IMPLEMENTATIONS[own]
    share_states(modules)


def compute_soft_caps(model: Any) -> None:
    """Switch a model whose attention has soft caps from SDPA, which drops them."""
    config = model.config.get_text_config()
    capped = getattr(config, "attn_logit_softcapping", None)
    if capped is not None and config._attn_implementation == "sdpa":
        model.get_decoder().set_attn_implementation("eager")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of probing a model.

    Attributes:
        status: ``packed``: equal. ``padded``: each completion has a prompt of its own. ``refused``:
            neither is right.
        why: Why it is not packed.
        calls: Number of calls of each class of attention modules in a forward.
        causal: The attention of all layers is causal, and nothing else.
        logprob_gap: The largest, in nats; None where nothing was compared.
        gradient_gap: The largest, as a share of the largest gradient.
    """

    status: Literal["packed", "padded", "refused"]
    why: str = ""
    calls: Mapping[str, int] = field(default_factory=dict)
    causal: bool = True
    logprob_gap: float | None = None
    gradient_gap: float | None = None


def admit(model: Any, verdict: Verdict | None) -> None:
    """Let a model take packed sequences if a verdict allows it; else it keeps its own forward."""
    base = unwrapped(model)
    compute_soft_caps(base)
    if verdict is not None:
        install(base)
        base.sharing_verdict = verdict


def verdict_of(model: Any) -> Verdict | None:
    """The verdict by which a model, or the one inside a peft model, was admitted."""
    found: Verdict | None = getattr(unwrapped(model), "sharing_verdict", None)
    return found


def shared_states(
    model: Any,
    groups: Sequence[GroupInput],
    read: Read = "before",
    run_tower: bool = False,
    context: Context | None = None,
) -> CompletionStates:
    """See ``scores.completion_states``. Groups of one ``kind`` are one forward.

    On ranks there must be one kind: they gather the layers of each forward together.
    """
    base = unwrapped(model)
    completion_ids, mask = completion_batch(groups)
    hidden: dict[int, torch.Tensor] = {}
    here: dict[int, torch.Tensor] = {}
    with vision_in_graph(base) if run_tower else nullcontext():
        for places in by_kind(groups):
            of_kind = [groups[i] for i in places]
            sizes = [int(completion_batch([group])[1].sum()) for group in of_kind]
            packed = pack_text(base, of_kind, read)
            assert isinstance(packed.layout, AttentionLayout)
            part = None if context is None else Part.of(packed.layout, context, base.device)
            try:
                out, layout = run_packed(base, packed, of_kind, body_of(base), part)
                _check_calls(base, Counter(layout.calls))
            except PrefixSharingError as error:  # of a kind of prompt that the probe did not see
                key = "model.sharing=padded" if part is None else CUTS_NOTHING
                raise PrefixSharingError(f"{error}; set {key}") from error
            rows = packed.rows
            if part is not None:
                read_here, rows = part.read(rows)
                here.update(zip(places, read_here.split(sizes), strict=True))
                sizes = [int(here[i].sum()) for i in places]
            of_rows = out.last_hidden_state[0].index_select(0, rows)
            hidden.update(zip(places, of_rows.split(sizes), strict=True))
    states = torch.cat([hidden[i] for i in range(len(groups))])
    targets, tokens = (x.to(base.device) for x in (completion_ids[mask], mask.nonzero().T))
    own = None
    if context is not None:
        own = torch.cat([here[i] for i in range(len(groups))])
        targets, tokens = targets[own], tokens[:, own]
    padded = PaddedRows((len(mask), mask.shape[1]), tokens, context, own)
    # Of several forwards nobody asks for the rows.
    return CompletionStates(states, targets, padded, rows)


def check_context(model: Any) -> None:
    """Check that the ranks of a context can share the sequences of a model without a family.

    Raises:
        ValueError: If the ranks cannot share the model's sequences.
    """
    base, verdict, why = unwrapped(model), verdict_of(model), ""
    if verdict is None:
        why = "each of its completions computes its prompt again, in a sequence that stays whole"
    elif has_states(list(base.get_decoder().modules())):
        why = "its layers carry a state from token to token, which a rank does not hand on"
    elif not verdict.causal:
        why = f"ranks do not cut its attention, {MORE_THAN_CAUSAL}"
    if why:
        raise ValueError(
            f"resources.context_parallel_size and a {type(base).__name__}: {why}; set "
            f"{CUTS_NOTHING} (docs/models.md)"
        )


def _check_calls(model: Any, calls: Mapping[str, int]) -> None:
    """Check that every layer has made the calls of the probe: others would mix the sequences."""
    verdict = verdict_of(model)
    assert verdict is not None, "the model was not admitted"
    modules = modules_of(model, verdict.calls)
    wanted = {name: times * modules[name] for name, times in verdict.calls.items()}
    if any(calls.get(name) != times for name, times in wanted.items()):
        raise PrefixSharingError(
            f"its attention was called {dict(calls)} times in place of {wanted}"
        )


def modules_of(model: Any, names: Iterable[str]) -> dict[str, int]:
    """Numbers of modules in the decoder, by their class."""
    found = Counter(type(module).__name__ for module in model.get_decoder().modules())
    return {name: found[name] for name in names}


def by_kind(groups: Sequence[GroupInput]) -> list[list[int]]:
    """Indices of the groups of each kind."""
    kinds: dict[Any, list[int]] = {}
    for index, group in enumerate(groups):
        kinds.setdefault(group.kind, []).append(index)
    return list(kinds.values())


def pack_text(model: Any, groups: Sequence[GroupInput], read: Read = "before") -> Packed:
    """The groups as one sequence. The model itself puts media in the place of their tokens."""
    texts = [
        replace(group, media=(), observed=tuple(o and replace(o, media=()) for o in group.observed))
        for group in groups
    ]
    return pack(texts, (), model.device, read)


def run_packed(
    model: Any,
    packed: Packed,
    groups: Sequence[GroupInput],
    forward: Any,
    part: Part | None = None,
) -> tuple[Any, SharedLayout]:
    """The output of ``forward``, the model or the one without a head, for ``[1, T]`` ids.

    With a ``part`` it is that for a rank's own tokens. Beside it the layout, which has recorded the
    calls of attention modules.

    Raises:
        PrefixSharingError: The model's code does not let completions share their prompt.
    """
    groups = [group.unforked() for group in groups]
    shows = any(o and o.media for g in groups for o in g.observed)
    layout = SharedLayout.of(packed, shows, part)
    with packing(layout), _continued_positions(model.get_decoder(), layout) as decoders:
        out = forward(
            input_ids=packed.ids[None],
            # Without one, positions that begin again would be taken for other sequences.
            attention_mask=torch.ones_like(packed.ids)[None],
            use_cache=False,
            **_arguments(model, packed, layout, groups),
        )
    if not decoders:
        raise PrefixSharingError("its decoder was not called")
    if layout.stray:
        raise PrefixSharingError(f"without the layout ran {', '.join(sorted({*layout.stray}))}")
    return out, layout


@contextmanager
def _continued_positions(decoder: Any, layout: SharedLayout) -> Iterator[list[Any]]:
    """Give the decoder positions by group inside the block; yields its calls."""
    called: list[Any] = []
    carries_state = has_states(list(decoder.modules()))

    def before(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        own = kwargs.get("position_ids")
        called.append(own)
        kwargs["position_ids"] = layout.places[None] if own is None else layout.continued(own)
        if carries_state:
            kwargs["layout"] = kwargs["seq_idx"] = layout
        if layout.part is not None:
            if args:
                raise PrefixSharingError("its language model is given arguments without names")
            kwargs = layout.part.arguments(kwargs)
        return args, kwargs

    hook = decoder.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield called
    finally:
        hook.remove()


def _arguments(
    model: Any, packed: Packed, layout: SharedLayout, groups: Sequence[GroupInput]
) -> dict[str, torch.Tensor]:
    """The processor's arguments of all prompts and of the pictures that tools show, each once."""
    prefixes, suffixes = layout.plain.prefixes.q_lengths, iter(layout.plain.suffixes.q_lengths)
    first, then = [], []
    for group, length in zip(groups, prefixes, strict=True):
        prompt = len(group.prompt_ids)
        if len(group.completions) == 1:  # it continues in its prefix
            first += group.pieces(0, length - prompt)
            continue
        first.append((prompt, group.arguments))
        then += [group.piece(i, next(suffixes)) for i in range(len(group.completions))]
    # Of a sharded model the precision of what is gathered; its own weights are in float32.
    dtype = model.get_input_embeddings().weight.dtype
    return arguments_of_rows([[*first, *then]], len(packed.ids), packed.ids.device, dtype)
