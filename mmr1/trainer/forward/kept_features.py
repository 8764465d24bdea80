"""Features of a frozen tower, kept from forward to forward of a model without a family.

transformers' models take what their encoders gave, as ``mm_encoder_outputs``, and do not run them
again. What is kept is that of all images of a prompt, or of its videos: the processor sees them
together.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling

from mmr1.trainer.forward.sequences import GroupInput
from mmr1.vision.families.loading import model_parts
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import Medium

ARGUMENT = "mm_encoder_outputs"
_INNER = "deepstack_features"
_PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}


def keeps_features(base: Any) -> bool:
    """True if a transformers model takes features in place of pictures, of the last layer alone."""
    if ARGUMENT not in inspect.signature(base.base_model.forward).parameters:
        return False
    encoders = (getattr(base.base_model, f"get_{kind}_features", None) for kind in _PIXELS)
    outputs = (inspect.signature(encode).return_annotation for encode in encoders if encode)
    return not any(hasattr(kind, _INNER) for output in outputs for kind in _alternatives(output))


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) or (annotation,)


def with_kept_features(
    arguments: Mapping[str, torch.Tensor],
    base: Any,
    groups: Sequence[GroupInput],
    copies: bool,
    features: FeatureCache | None,
) -> dict[str, Any]:
    """The arguments of a forward of these groups, with features in place of pixels.

    Args:
        arguments: Those with pixels, which stay as they are without a cache.
        base: The transformers model.
        copies: Each completion has the media of its prompt before its own; otherwise those of all
            prompts come first, as in a packed sequence.
        features: Where they are kept; what is not there is put there.
    """
    if features is None or not keeps_features(base):
        return {**arguments}
    found: dict[str, Any] = {}
    given: dict[str, Any] = {**arguments}
    for kind, pixels in _PIXELS.items():
        shown = [piece for piece in _pieces(groups, copies) if pixels in piece[1]]
        if shown:
            found[kind] = _joined([_encoded(base, kind, *p, features) for p in shown])
            del given[pixels]  # models take one of the two
    return {**given, ARGUMENT: found} if found else given


_Piece = tuple[tuple[Medium, ...], Mapping[str, torch.Tensor]]


def _pieces(groups: Sequence[GroupInput], copies: bool) -> list[_Piece]:
    """Media and arguments in the order of a forward's tokens."""
    first: list[_Piece] = []
    then: list[_Piece] = []
    for group in groups:
        alone = copies or len(group.completions) == 1  # it continues in its prefix
        first += [] if copies else [(group.media, group.arguments)]
        for index in range(len(group.completions)):
            own = [(group.media, group.arguments)] if copies else []
            if group.observed and (observed := group.observed[index]) is not None:
                own += [(run.media, run.arguments) for run in observed.seen if run.media]
            (first if alone else then).extend(own)
    return [*first, *then]


def _encoded(
    base: Any,
    kind: str,
    media: Sequence[Medium],
    arguments: Mapping[str, torch.Tensor],
    features: FeatureCache,
) -> list[torch.Tensor] | torch.Tensor:
    """What the model's encoder and projector make of a piece's media of a kind."""
    # Processors may put videos among the images, so all media are part of the key.
    key = " ".join([kind, *(m.digest for m in media)])
    if key in features:
        return features[key]
    encode = getattr(base.base_model, f"get_{kind}_features")
    dtype = base.get_input_embeddings().weight.dtype
    given = {
        name: arguments[name].to(
            base.device, dtype if arguments[name].is_floating_point() else None
        )
        for name in inspect.signature(encode).parameters
        if name in arguments
    }
    tower = model_parts(base).tower
    trained = tower is not None and any(p.requires_grad for p in tower.parameters())
    assert not trained, "features of a trained tower change every step"
    with torch.no_grad():  # with checkpointing, what enters a tower wants a gradient, frozen or not
        output = encode(**given, return_dict=True)
    assert not getattr(output, _INNER, None), "features of inner layers would be lost"
    pooled = output.pooler_output
    features[key] = pooled if isinstance(pooled, torch.Tensor) else list(pooled)
    return features[key]


def _joined(parts: Sequence[list[torch.Tensor] | torch.Tensor]) -> BaseModelOutputWithPooling:
    """The outputs for several pieces as for all of their media together."""
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    pooled: Any = [row for part in parts if isinstance(part, list) for row in part]
    if tensors:
        pooled = torch.cat(tensors)
    return BaseModelOutputWithPooling(pooler_output=pooled)
