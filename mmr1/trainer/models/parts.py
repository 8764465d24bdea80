"""The parts of a vision-language model by name: for freezing, and for their learning rates."""

from __future__ import annotations

import re
from typing import Any

from mmr1.vision.families.loading import model_parts

_PROJECTOR = re.compile(r"(^|\.)(merger|deepstack_merger_list|multi_modal_projector)\.")


def parameters_of(model: Any, part: str, key: str) -> set[str]:
    """Names of the parameters of ``language_model``, ``vision_tower`` or ``multi_modal_projector``,
    or of those that a regular expression finds.

    The projector maps the tower's features to the language model's; Qwen calls it the merger.

    Raises:
        ValueError: There are none. Names the configuration's ``key``.
    """
    names = [name for name, _ in model.named_parameters()]
    if part in ("language_model", "vision_tower", "multi_modal_projector"):
        found = {name for name, of in _parts(model).items() if of == part}
    else:
        found = {name for name in names if re.search(part, name)}
    if not found:
        raise ValueError(
            f"{key}: '{part}' is no part of this model and finds no parameter; parts are "
            "language_model, vision_tower and multi_modal_projector, and a regular expression is "
            f"searched in names such as {names[0]}"
        )
    return found


def _parts(model: Any) -> dict[str, str]:
    """The part of each parameter."""
    tower = model_parts(model).tower
    of_tower = {id(p) for p in tower.parameters()} if tower is not None else set()

    def part(name: str, parameter: Any) -> str:
        if _PROJECTOR.search(name):
            return "multi_modal_projector"
        return "vision_tower" if id(parameter) in of_tower else "language_model"

    return {name: part(name, parameter) for name, parameter in model.named_parameters()}
