"""Check that rollout engine and trainer read the same prompts and compute the same log-probs.

The check runs on a prompt of each kind that the data hold, before the first update. It compares
token ids, grid sizes and the log-probs of a few sampled tokens. Without it, a placeholder that is
expanded twice, another resize, stale weights or other position ids would go unnoticed, and the
update would use log-probs that are not the policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from mmr1.config import SamplingConfig
from mmr1.data.rows import kinds_of
from mmr1.rollout.protocol import Engine, Request, complete
from mmr1.trainer.forward.sequences import completion_mask, kept_counts
from mmr1.trainer.sampling.experience import SupportsLogprobs
from mmr1.trainer.sampling.sight import check_sight
from mmr1.trainer.sampling.views import over_all_ids
from mmr1.types import Prompt, RolloutGroup, Sample
from mmr1.vision.families.family import ModelFamily, is_packed
from mmr1.vision.prepare import MediaCache

_KERNELS = {
    False: "float32 products there are IEEE's with TRITON_F32_DEFAULT=ieee and "
    "NVIDIA_TF32_OVERRIDE=0, which mmr1 sets where you have not set others",
    True: "engine.log names the attention backend, and another one is "
    "rollout.engine.engine_kwargs.attention_backend",
}
"""What to look at, by whether one side computes in half precision."""


PARITY_TOKENS = 16
"""Tokens of a completion that the check samples, at most."""


class ParityError(RuntimeError):
    """The rollout engine and the trainer disagree."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Result of the check.

    Attributes:
        prompts: Number of prompts compared.
        max_gap: Largest log-prob gap of a token, in nats.
        mean_gap: Largest mean gap over the tokens of a prompt, in nats.
        sight: How far other pictures move a token's log-prob at least, in nats; None without media.
    """

    prompts: int
    max_gap: float
    mean_gap: float
    sight: float | None


def first_of_each_kind(
    sources: Mapping[str, Sequence[Sample]], usable: Callable[[str, Sample], bool]
) -> dict[tuple[str, ...], Sample]:
    """The first text-only sample, the first with one image, with two, with a video, ...

    Args:
        sources: Samples by dataset.
        usable: Can the media of this sample of a dataset be decoded?
    """
    kinds: dict[tuple[str, ...], Sample] = {}
    for dataset, samples in sources.items():
        for index, kind in enumerate(kinds_of(samples)):
            if kind not in kinds and usable(dataset, samples[index]):
                kinds[kind] = samples[index]
    return kinds


def check_parity(
    engine: Engine,
    policy: SupportsLogprobs,
    family: ModelFamily,
    media: MediaCache,
    prompts: Sequence[Prompt],
    sampling: SamplingConfig,
    tolerance: float,
    rounded: bool = False,
    max_tokens: int = PARITY_TOKENS,
) -> Parity:
    """Compare both sides on these prompts, and check that the policy sees their pictures.

    Args:
        tolerance: Largest allowed log-prob gap of a token, in nats.
        rounded: One side computes in half precision. Single tokens may then differ by tenths of a
            nat (vllm-project/vllm#18352), so the tolerance holds for each prompt's mean gap.
        max_tokens: Limit of a completion, in tokens.

    Raises:
        ParityError: If they differ: names the prompt, what differs, and by how much.
        BlindError: If the policy does not see the pictures of a prompt.
    """
    for prompt, probe in zip(prompts, engine.probe(prompts), strict=True):
        prepared = [media[m] for m in prompt.media]
        expanded = family.read_prompt(prompt, prepared).ids.tolist()
        name = f"sample '{prompt.sample.id}'"
        if is_packed(family) and tuple(m.grid for m in prepared) != probe.grids:
            raise ParityError(
                f"{name}: the trainer's processor made grids {[m.grid for m in prepared]} and the "
                f"engine's {list(probe.grids)} of the same media; both must use the processor "
                "saved beside the model"
            )
        if tuple(expanded) != probe.prompt_ids:
            raise ParityError(
                f"{name}: the trainer reads {len(expanded)} prompt tokens and the engine "
                f"{len(probe.prompt_ids)}, first different at "
                f"{_first_difference(expanded, probe.prompt_ids)}"
            )
    # Sampled, not greedy, and from the run's own distribution: top-p, top-k and min-p included.
    short_sampling = sampling.changed(max_tokens=min(max_tokens, sampling.max_tokens))
    requests = [Request(p, (seed, seed + 1), short_sampling) for seed, p in enumerate(prompts)]
    groups = complete(engine, requests)
    compared = completion_mask(groups)
    if (kept := kept_counts(groups)) is not None:
        compared &= kept != 1  # the log-prob of the only id is 0 whatever the weights
    logprobs = policy.logprobs(groups)
    gaps = (logprob_gaps(groups, logprobs) * compared).view(len(prompts), -1)
    tokens = compared.view(len(prompts), -1).sum(1).clamp(min=1)
    largest, means = gaps.amax(1), gaps.sum(1) / tokens
    found, measure = (means, "on average") if rounded else (largest, "by up to")
    worst = int(found.argmax())
    if not found[worst] <= tolerance:  # also false for NaN
        raise ParityError(
            f"sample '{prompts[worst].sample.id}': log-probs of the rollout engine and the trainer "
            f"differ {measure} {found[worst]:.2e} nats (allowed: {tolerance:.0e}, "
            "rollout.parity_tolerance). They must run the same weights, positions and pixels: "
            "check that model.path is the checkpoint both loaded, model.dtype and "
            "rollout.engine.dtype. On a GPU the engine's kernels may be the cause: "
            f"{_KERNELS[rounded]}"
        )
    whole = groups if kept is None else [over_all_ids(group) for group in groups]
    sight = check_sight(policy, whole, logprobs if kept is None else policy.logprobs(whole))
    return Parity(len(prompts), float(largest.max()), float(means.max()), sight)


def logprob_gaps(groups: Sequence[RolloutGroup], logprobs: torch.Tensor) -> torch.Tensor:
    """Absolute differences ``[B, R]`` between the engine's log-probs and these, 0 in padding."""
    rollout = [torch.tensor(c.logprobs) for g in groups for c in g.completions]
    return (pad_sequence(rollout, batch_first=True) - logprobs).abs() * completion_mask(groups)


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> str:
    for place, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return f"token {place} ({a} against {b})"
    return f"token {min(len(ours), len(theirs))} (one side ends)"
