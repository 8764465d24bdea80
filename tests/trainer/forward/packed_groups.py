"""Groups to pack, and comparisons of their gradients."""

import torch

from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.scores import completion_scores
from tests.padded_forward import padded_scores
from tests.trainer.tiny_groups import group, image, video

TOLERANCE = 1e-5


def one_image():
    return image(56, 84, seed=0)


GROUPS = {
    "text": lambda: [group([], 9, [3, 7, 1, 12], 0), group([], 30, [5, 5], 1)],
    "image": lambda: [group([one_image()], 11, [5, 9], 1), group([image(84, 56, 1)], 3, [4], 2)],
    "two images": lambda: [group([one_image(), image(84, 112, 3)], 6, [4, 4, 4], 2)],
    "one image in two prompts": lambda: [
        group([one_image()], 6, [4, 2], 2),
        group([image(28, 28, 9), one_image()], 5, [7, 3], 3),
    ],
    "video": lambda: [group([video(4, 56, 84, 1)], 5, [8, 2, 6], 3)],
    "everything": lambda: [
        group([], 9, [3, 7, 1, 12], 0),
        group([one_image()], 11, [5, 9], 1),
        group([video(4, 56, 84, 1)], 5, [8], 3),
        group([image(112, 140, 5), video(2, 56, 56, 2)], 5, [8, 2], 4),
        group([], 4, [1], 5),
    ],
}


def weighted_sum(scores):
    """Every token of both outputs with a weight of its own."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, *scores.logprobs.shape, generator=generator)
    return (scores.logprobs * weights[0]).sum() + (scores.entropy * weights[1]).sum()


def gradients(model, scores):
    model.zero_grad()
    weighted_sum(scores).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_gradients(actual, wanted):
    """Equal to 1e-5, of the gradient's largest entry where that is above 1."""
    assert actual.keys() == wanted.keys()
    for name, gradient in wanted.items():
        scale = max(1.0, gradient.abs().max().item())
        error = (actual[name] - gradient).abs().max().item()
        assert error <= TOLERANCE * scale, f"{name}: off by {error} with entries up to {scale}"


def assert_same(model, groups, temperature=0.7, **options):
    expected = padded_scores(model, groups, Distribution(temperature))
    wanted = gradients(model, expected)
    got = completion_scores(model, groups, Distribution(temperature), **options)
    torch.testing.assert_close(got.logprobs, expected.logprobs, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(got.entropy, expected.entropy, atol=TOLERANCE, rtol=0)
    assert_gradients(gradients(model, got), wanted)
    return wanted
