"""The parts of a vision-language model by name: for freezing, and for their learning rates."""

from __future__ import annotations

import re
from typing import Any

import torch

from mmr1.trainer.models.quantization import quantized_weights
from mmr1.vision.families.loading import model_parts, unwrapped

_PROJECTOR = re.compile(r"(^|\.)(merger|deepstack_merger_list|multi_modal_projector)\.")


def parameters_of(model: Any, part: str, key: str) -> set[str]:
    """Names of the parameters of ``language_model``, ``vision_tower`` or ``multi_modal_projector``,
    or of those that a regular expression finds.

    The projector maps the tower's features to the language model's; Qwen calls it the merger.

    Raises:
        ValueError: If the part has no parameters; the message names the configuration's ``key``.
    """
    names = [name for name, _ in model.named_parameters()]
    if part in ("language_model", "vision_tower", "multi_modal_projector"):
        found = {name for name, of in _parts(model).items() if of == part}
    else:
        found = {name for name in names if re.search(part, name)}
    if not found:
        raise ValueError(
            f"{key}: '{part}' is not part of this model and finds no parameter; parts are "
            "language_model, vision_tower and multi_modal_projector, and a regular expression is "
            f"searched in names such as {names[0]}"
        )
    return found


def outside_language_model(model: Any) -> set[str]:
    """Names of the parameters of the vision tower and of its projector."""
    return {name for name, part in _parts(model).items() if part != "language_model"}


def known_to_engines(model: Any) -> set[str]:
    """Names of the weights that an engine which read the model's files does not need.

    Those of a vision tower and projector in which nothing is trained, adapters included, and all
    names but the first of weights that are one (tied ones). Weights in 4 bits are other ones than
    the files have.
    """
    base = unwrapped(model)
    known = set(dict(base.named_parameters(remove_duplicate=False)))
    known -= {name for name, _ in base.named_parameters()}
    known |= _untrained_vision(base) - quantized_weights(base).keys()
    return {_plain(name) for name in known}


def untrained_vision(model: Any) -> set[str]:
    """Names of the weights of a vision tower and projector in which nothing is trained, adapters
    included; none where something is.
    """
    return {_plain(name) for name in _untrained_vision(unwrapped(model))}


def _untrained_vision(base: Any) -> set[str]:
    vision = outside_language_model(base)
    trained = (p.requires_grad for name, p in base.named_parameters() if name in vision)
    return set() if any(trained) else vision


def _plain(name: str) -> str:
    """The name without the prefixes of adapters."""
    return name.replace(".base_layer.", ".")


def _parts(model: Any) -> dict[str, str]:
    """The part of each parameter."""
    parts = model_parts(model)
    tower = set() if parts.tower is None else _ids(parts.tower)
    language = _ids(parts.language_model) | _ids(parts.lm_head)

    def part(name: str, parameter: Any) -> str:
        if _PROJECTOR.search(name) or id(parameter) not in tower | language:
            return "multi_modal_projector"
        return "vision_tower" if id(parameter) in tower else "language_model"

    return {name: part(name, parameter) for name, parameter in model.named_parameters()}


def _ids(module: torch.nn.Module) -> set[int]:
    return {id(parameter) for parameter in module.parameters()}
