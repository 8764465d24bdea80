"""Log-probs of a conversation by a plain forward pass."""

from __future__ import annotations

import torch

from tests.trainer.tiny_groups import family


def plain_logprobs(model, cache, group, completion, forbidden=()):
    """``[R]`` by the model's own forward, given token ids and pixels and nothing else."""
    shown = [cache[m] for m in (*group.prompt.media, *completion.media)]
    in_prompt = [cache[m] for m in group.prompt.media]
    prompt = family().expand_placeholders(group.prompt.token_ids, in_prompt)
    ids = torch.tensor([*prompt, *completion.token_ids.tolist()])[None]
    seen = {}
    if shown:
        seen = {
            "pixel_values": torch.cat([m.patches for m in shown]),
            "image_grid_thw": torch.tensor([m.grid for m in shown]),
        }
    types = (ids == family().image_id).long()
    logits = model(input_ids=ids, mm_token_type_ids=types, use_cache=False, **seen).logits
    logits[..., list(forbidden)] = -torch.inf
    logprobs = logits[0, :-1].float().log_softmax(-1)
    return logprobs.gather(-1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
