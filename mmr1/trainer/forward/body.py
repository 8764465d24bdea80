"""A transformers model without its head."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


def body_of(model: Any) -> Any:
    """Module that is called like the model, and whose output has a ``last_hidden_state``.

    Some models have no module below the head that takes their media. Of these the head's input is
    taken, and the head computes the last token alone.
    """
    if model.base_model is not model or model.get_output_embeddings() is None:
        return model.base_model

    def call(**given: Any) -> Any:
        kept: list[torch.Tensor] = []

        def keep(_: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            kept.append(inputs[0])
            return (inputs[0][:, -1:],)

        hook = model.get_output_embeddings().register_forward_pre_hook(keep)
        try:
            model(**given)
        finally:
            hook.remove()
        return SimpleNamespace(last_hidden_state=kept[0] if kept else None)

    return call
