"""Log-probs and gradients of ranks that share sequences."""

from __future__ import annotations

import base64
import io
from typing import Any

import torch
import torch.distributed as dist
from PIL import Image

from mmr1.trainer.forward.context import Context
from tests.trainer.models.reference_server import value


def gradients_of(model: Any, context: Context | None) -> dict[str, torch.Tensor]:
    """Of every parameter that has one, summed over the ranks of a context."""
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    if context is not None:
        names: list[Any] = [None] * context.size
        dist.all_gather_object(names, list(gradients), group=context.group)
        assert all(name == names[0] for name in names), "FSDP would wait for ever"
        for gradient in gradients.values():
            dist.all_reduce(gradient, group=context.group)
    return gradients


def log_probs(body: dict[str, Any], placeholder: int) -> dict[str, Any]:
    """What a server replies: some number for every token, placeholders expanded."""
    sizes: list[int] = []
    for part in body.get("content_parts", ()):
        data = base64.b64decode(part["url"].removeprefix("data:image/png;base64,"))
        width, height = Image.open(io.BytesIO(data)).size
        sizes.append(width * height // 28**2)
    tokens = [
        token
        for own in body["token_ids"]
        for token in [own] * (sizes.pop(0) if own == placeholder else 1)
    ]
    return {"prompt_logprobs": [None, *({str(t): {"logprob": value(t)}} for t in tokens[1:])]}
