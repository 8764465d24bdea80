"""Check that the policy sees the pictures of its prompts.

Engine and trainer share the renderer, the processor and the vision features, so a fault in these
leaves them in agreement. Here the trainer scores the same tokens once more with the pictures
changed: if no log-prob moves, the pictures do not reach the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.sampling.experience import SupportsLogprobs
from mmr1.trainer.sampling.views import as_if, under
from mmr1.types import RolloutGroup
from mmr1.vision.views import view_options

LEAST_MOVE = 1e-6
"""Nats that a seen picture moves the log-prob of a token at least. The compared forward passes have
equal shapes, so where nothing reaches the model they give the same bits."""
OTHER_PICTURES = (view_options("blank", 1.0, 0), view_options("noise", 1.0, 0))
"""A picture may be grey already, but not grey and noise."""


class BlindError(RuntimeError):
    """The policy does not see the pictures of its prompts."""


def check_sight(
    policy: SupportsLogprobs, groups: Sequence[RolloutGroup], logprobs: torch.Tensor
) -> float | None:
    """Measure how far other pictures move the log-probs of completions, in nats.

    Args:
        groups: Completions of each kind of prompt.
        logprobs: Log-probs of the policy for them, ``[B, R]``.

    Returns:
        The largest move of a token under a grey or a noisy picture, for the prompt where that is
        least; None if no prompt has a picture or a video.

    Raises:
        BlindError: If nothing moves for one of the prompts.
    """
    shown = torch.tensor([bool(group.prompt.media) for group in groups])
    if not shown.any():
        return None
    mask = completion_mask(groups)
    moves = torch.zeros(len(groups))
    for options in OTHER_PICTURES:
        # Prompts without media stay among them: equal shapes are rounded alike.
        changed = [as_if(group, under(group.prompt, options)) for group in groups]
        moved = (policy.logprobs(changed) - logprobs).abs() * mask
        moves = torch.maximum(moves, moved.view(len(groups), -1).amax(1))
    index = int(moves.masked_fill(~shown, torch.inf).argmin())  # the first NaN, if there is one
    least, prompt = float(moves[index]), groups[index].prompt
    if not least > LEAST_MOVE:
        raise BlindError(
            f"sample '{prompt.sample.id}': the policy does not see its "
            f"{prompt.media[0].kind}: with a grey one and with noise every log-prob of an "
            f"answer moves by {least:.1e} nats or less. Look at the weights of the vision tower "
            "and its projector in model.path (zero or not loaded?), and at the chat template: the "
            "placeholder of the picture must be in the prompt"
        )
    return least
