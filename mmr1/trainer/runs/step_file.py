"""The step file: all that a step of a run computed, for an audit by whoever does not trust it.

One safetensors file, ``OUTPUT/steps/step_000001.safetensors``, with a JSON manifest in its metadata
under ``step``. Rows of different lengths follow one another without padding, so that files of two
trainers compare however each of them padded. G prompts, B completions, R completion tokens
together, M media, K optimizer steps, W trained parameters:

===================  ============  =================================================================
prompt/ids           int32 [P]     prompt tokens as the model read them, placeholders expanded
prompt/length        int32 [G]     tokens of each prompt
prompt/media         int32 [G]     images and videos of each prompt
prompt/greedy        f32 [G]       reward of the greedy completion; absent without a greedy baseline
media/grid           int32 [M, 3]  temporal patches, rows and columns of each medium
media/patch_mean     f32 [., 3]    mean of each patch and channel, as the vision tower got them;
                                   absent for processors that are given whole prompts
row/prompt           int32 [B]     prompt of each completion
row/length           int32 [B]     tokens of each completion
row/reward           f32 [B]       total reward; NaN if it is invalid
row/reward.NAME      f32 [B]       reward of each function; NaN if it is invalid
row/truncated        uint8 [B]     1 if a limit ended the completion
row/version          int32 [B]     weight updates that the engine had received, the fewest if it
                                   received some while it sampled
row/mini_batch       int32 [B]     optimizer step of a pass that learns from it; -1 for none
token/ids            int32 [R]
token/mask           uint8 [R]     1 if the token counts in the loss
token/sampled        uint8 [R]     1 if the policy sampled it; absent without an environment
token/kept           int32 [R]     ids that the engine kept for the token, 0: all; absent if it kept
                                   all everywhere
token/kept_ids       int32 [.]     those ids, token after token; log-probs are over them
token/rollout_logp   f32 [R]       log-prob under the engine
token/old_logp       f32 [R]       log-prob under the policy before the update; absent if the update
                                   computes it
token/ref_logp       f32 [R]       log-prob under the reference; absent without one
token/masked_logp    f32 [R]       log-prob with masked images; NaN for prompts without one; absent
                                   without algorithm.perception
token/chosen         uint8 [R]     1 if the loss treats the token apart (Clip-Cov, KL-Cov)
token/step_reward    f32 [R]       reward of the steps that end at the token; NaN if none
                                   does; absent without process supervision
token/value          f32 [R]       the critic's value of the state before the token
token/return         f32 [R]       the critic's target
token/advantage      f32 [R]
token/weight         f32 [R]       the loss is the sum of weight times the token's loss
update/loss          f32 [K]
update/grad_norm     f32 [K]       before clipping
update/lr            f32 [K]
param/grad_norm      f32 [K, W]    before clipping
param/delta_norm     f32 [K, W]    norm of the parameter's change
===================  ============  =================================================================

Only the ids, lengths, prompts of rows and the mask are required of other projects' files.
Manifest: ``schema``; ``writer``; ``step``; ``version``, weight updates before the step;
``steps_before``, optimizer steps before it; ``weights``, the folder of the weights before it,
relative to the run's; ``parameters``; ``rows``, the place of each prompt's row, such as
``data.jsonl:7``; ``prompts``, their texts; ``messages``, which the prompts were rendered from, with
the media as files; ``forbidden``, the ids that are never sampled; ``coefficients`` of the loss in
this step; ``config``, the resolved configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

import mmr1
from mmr1.config import Config
from mmr1.config.file import redacted
from mmr1.files import atomic_binary
from mmr1.rollout.distribution import join_supports
from mmr1.trainer.forward.sequences import GroupInput, ModelInputs, completion_mask
from mmr1.trainer.models.measured import MeasuredUpdate
from mmr1.types import Experience, Reward, Sample, TextPart

SCHEMA = "mmr1-step/1"
FOLDER = "steps"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step as it is written: what it learned from, and what its update did.

    Attributes:
        experience: Batch of the update.
        update: Its optimizer steps, measured.
        version: Weight updates of the policy before the step.
        weights: Folder of the weights before the step, or their name on the Hub.
    """

    experience: Experience
    update: MeasuredUpdate
    version: int
    weights: str


def weights_on_disk(config: Config, number: int, done: int) -> str | None:
    """Return where the weights before a step are stored, if the step gets a file.

    A step gets one if it is the first, or follows a checkpoint: then the weights before it, and
    AdamW's moments, are on the disk already.

    Args:
        number: Number of the step.
        done: Steps that were finished when this process began.
    """
    trainer = config.trainer
    if not trainer.step_files:
        return None
    if number == 1:
        return config.model.path
    before = number - 1
    saved = before == done or (trainer.save_steps > 0 and before % trainer.save_steps == 0)
    return f"checkpoints/step_{before:06d}" if saved else None


class StepFiles:
    """Writer of step files.

    Args:
        inputs: Reads prompts and media as the models do, patches included.
        place: Tells the file and line of a sample; None if they are unknown.
    """

    def __init__(
        self, config: Config, inputs: ModelInputs, place: Callable[[Sample], str | None]
    ) -> None:
        self._config, self._inputs, self._place = config, inputs, place
        self._folder = Path(config.trainer.output_dir)

    def write(self, number: int, record: StepRecord) -> Path:
        """Write the file of a step and return its path. Raises OSError."""
        groups = [scored.group for scored in record.experience.groups]
        tensors = {
            **_prompt_tensors(record.experience, self._inputs.of(groups)),
            **_row_tensors(record.experience),
            **_token_tensors(record.experience),
            **_update_tensors(record.update),
        }
        file = self._folder / FOLDER / f"step_{number:06d}.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        metadata = {"step": json.dumps(self._manifest(number, record))}
        with atomic_binary(file) as (out,):
            out.write(save(contiguous, metadata))
        return file

    def _manifest(self, number: int, record: StepRecord) -> dict[str, Any]:
        prompts = [scored.group.prompt for scored in record.experience.groups]
        return {
            "schema": SCHEMA,
            "writer": f"mmr1 {mmr1.__version__}",
            "step": number,
            "version": record.version,
            "steps_before": record.update.steps_before,
            "weights": record.weights,
            "parameters": record.update.parameters,
            "rows": [self._place(prompt.sample) for prompt in prompts],
            "prompts": [prompt.text for prompt in prompts],
            "messages": [messages_of(prompt.sample, self._folder) for prompt in prompts],
            "forbidden": sorted(self._inputs.family.forbidden_ids),
            "coefficients": asdict(record.experience.coefficients),
            "config": redacted(self._config),
        }


def _prompt_tensors(
    experience: Experience, inputs: Sequence[GroupInput]
) -> dict[str, torch.Tensor]:
    media = [medium for each in inputs for medium in each.media]
    tensors = {
        "prompt/ids": torch.cat([each.prompt_ids for each in inputs]).int(),
        "prompt/length": _ints(len(each.prompt_ids) for each in inputs),
        "prompt/media": _ints(len(each.media) for each in inputs),
    }
    greedy = [scored.greedy for scored in experience.groups]
    if any(reward is not None for reward in greedy):
        tensors["prompt/greedy"] = _rewards(greedy)
    if media:
        tensors["media/grid"] = torch.tensor([medium.grid for medium in media]).int()
        patches = [medium.patches for medium in media]
        if all(patch.ndim == 2 and patch.shape[1] % 3 == 0 for patch in patches):
            means = [patch.float().unflatten(1, (3, -1)).mean(2) for patch in patches]
            tensors["media/patch_mean"] = torch.cat(means)
    return tensors


def _row_tensors(experience: Experience) -> dict[str, torch.Tensor]:
    groups = experience.groups
    completions = [c for scored in groups for c in scored.group.completions]
    rewards = [reward for scored in groups for reward in scored.rewards]
    mini_batch = torch.full((len(completions),), -1)
    for number, part in enumerate(experience.mini_batches):
        mini_batch[part.learning] = number
    names = dict.fromkeys(name for reward in rewards for name in reward.components)
    components = {
        f"row/reward.{name}": torch.tensor([_number(r.components.get(name)) for r in rewards])
        for name in names
    }
    return {
        "row/prompt": _ints(n for n, s in enumerate(groups) for _ in s.group.completions),
        "row/length": _ints(len(c.token_ids) for c in completions),
        "row/reward": _rewards(rewards),
        "row/truncated": torch.tensor([c.truncated for c in completions]).byte(),
        "row/version": _ints(c.policy_version for c in completions),
        "row/mini_batch": mini_batch.int(),
        **components,
    }


def _token_tensors(experience: Experience) -> dict[str, torch.Tensor]:
    groups = [scored.group for scored in experience.groups]
    completions = [c for group in groups for c in group.completions]
    lengths = [len(c.token_ids) for c in completions]
    tokens = experience.tokens

    def flat(padded: torch.Tensor) -> torch.Tensor:
        return torch.cat([row[:n] for row, n in zip(padded, lengths, strict=True)])

    critic = experience.critic
    columns: Mapping[str, torch.Tensor | None] = {
        "step_reward": _step_rewards(experience, tokens.mask.shape),
        "mask": tokens.mask.byte(),
        "sampled": completion_mask(groups).byte() if any(c.spans for c in completions) else None,
        "rollout_logp": tokens.rollout_logprobs,
        "old_logp": tokens.old_logprobs,
        "ref_logp": tokens.ref_logprobs,
        "masked_logp": tokens.masked_logprobs,
        "chosen": None if tokens.chosen is None else tokens.chosen.byte(),
        "value": None if critic is None else critic.values,
        "return": None if critic is None else critic.returns,
        "advantage": tokens.advantages,
        "weight": tokens.loss_weights,
    }
    parts = [len(c.token_ids) if c.support is None else c.support for c in completions]
    support = join_supports(parts)
    kept = {}
    if support is not None:
        kept = {
            "token/kept": torch.from_numpy(support.sizes),
            "token/kept_ids": torch.from_numpy(support.ids),
        }
    return {
        **kept,
        "token/ids": torch.cat([torch.tensor(c.token_ids) for c in completions]).int(),
        **{f"token/{name}": flat(padded) for name, padded in columns.items() if padded is not None},
    }


def _step_rewards(experience: Experience, shape: torch.Size) -> torch.Tensor | None:
    steps = [steps for scored in experience.groups for steps in scored.steps or ()]
    if not steps:
        return None
    rewards = torch.full(shape, float("nan"))
    for row, of_row in enumerate(steps):
        for token, reward in of_row:
            rewards[row, token] = rewards[row, token].nan_to_num() + reward
    return rewards


def _update_tensors(update: MeasuredUpdate) -> dict[str, torch.Tensor]:
    return {
        **{
            f"update/{name}": torch.tensor([step[name] for step in update.steps])
            for name in ("loss", "grad_norm", "lr")
        },
        "param/grad_norm": torch.stack([norms.gradients for norms in update.norms]),
        "param/delta_norm": torch.stack([norms.changes for norms in update.norms]),
    }


def messages_of(sample: Sample, run: Path) -> list[dict[str, Any]]:
    """Return a sample's messages up to its demonstration, as chat templates take them.

    Media are files: the record's own, or for media inside the record those of the run's folder.
    """
    messages = []
    for message in sample.messages[: sample.demonstrated_from]:
        parts: list[dict[str, Any]] = []
        for part in message.parts:
            if isinstance(part, TextPart):
                parts.append({"type": "text", "text": part.text})
            else:
                file = part.path or run / "media" / part.digest()
                parts.append({"type": part.kind, "path": str(file), "options": {**part.options}})
        messages.append({"role": message.role, "content": parts})
    return messages


def _ints(numbers: Any) -> torch.Tensor:
    return torch.tensor(list(numbers)).int()


def _rewards(rewards: Sequence[Reward | None]) -> torch.Tensor:
    return torch.tensor([_number(None if r is None else r.value) for r in rewards])


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
