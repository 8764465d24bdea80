"""The policy in one process: its weights, its log-probs and its update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import torch
from torch.profiler import record_function

from mmr1.trainer.algorithms import Algorithm
from mmr1.trainer.algorithms.algorithm import LossInputs
from mmr1.trainer.algorithms.kl import k3
from mmr1.trainer.algorithms.losses import Correction, unit_weights
from mmr1.trainer.forward.micro_batches import MicroBatch, rows_of
from mmr1.trainer.forward.sequences import TokenScores
from mmr1.trainer.models.nll import add_distillation_gradient, add_nll_gradient
from mmr1.trainer.models.optimizer import Optimizer, check_finite
from mmr1.trainer.models.packed_model import DeviceSums, PackedModel
from mmr1.trainer.models.reference import SupportsDistributions
from mmr1.trainer.models.state import WriteCheckpoint, load_snapshot, model_snapshot
from mmr1.trainer.models.weights import copy_to_cpu
from mmr1.types import Experience, RolloutGroup, StepStats

WIDEST_GAP = "rollout/logprob_gap_max"
GAP_AFTER_PICTURE, TOKENS_AFTER_PICTURE = "rollout/logprob_gap_after_picture", "after_picture"


class SentWeights(Protocol):
    """Weights that stay where they are, on ranks, until engines ask for them."""

    def send(self, engines: Sequence[Any], version: int) -> None:
        """Send them to these engines, actors on Ray, which then sample with them.

        Raises:
            TransferError: Not all engines have them.
            WorkerLostError: A rank is gone, or has not sent them in time.
        """
        ...

    def release(self) -> None:
        """Free them: they are not needed any more."""
        ...


Weights = Mapping[str, torch.Tensor] | SentWeights
"""By names of the transformers model, or of its adapters with ``model.lora.merge: false``; of ranks
what has them sent."""


class Policy(Protocol):
    """What the loop asks of the policy, in one process or on many."""

    version: int

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` float32 without gradient."""
        ...

    def scores(self, groups: Sequence[RolloutGroup]) -> TokenScores:
        """Log-probs and entropies, ``[B, R]`` float32 without gradient."""
        ...

    def update(self, experience: Experience) -> StepStats:
        """Learn from one batch; returns what to log."""
        ...

    def weights(self, copy: bool = False) -> Weights:
        """The current weights, for ``load_weights`` of the engines that belong to the policy.

        With ``copy`` they stay as they are while training goes on.
        """
        ...

    def snapshot(self, copy: bool = False, only_model: bool = False) -> WriteCheckpoint:
        """What writes the policy as it is now into a checkpoint's folder; see ``state.py``."""
        ...

    def load_snapshot(self, checkpoint: Path) -> None:
        """Become the policy of a checkpoint, its optimizer and generators included."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class LocalPolicy:
    """One model and one optimizer: the policy of a single process, or a rank's part of it.

    Args:
        passes: Over each rollout.
        reference: To measure the KL over the vocabulary to, where the loss has it.
        correction: What makes up for the engine's own probabilities; see
            ``losses.rollout_importance_weights``.
        hands_adapters: Engines are given the adapters alone, in place of merged weights.
        distil_demonstrations: The PTX term is the divergence from the reference at the
            demonstrations' tokens, and not their likelihood.
    """

    def __init__(
        self,
        packed_model: PackedModel,
        algorithm: Algorithm,
        optimizer: Optimizer,
        passes: int,
        reference: SupportsDistributions | None = None,
        correction: Correction = unit_weights,
        distil_demonstrations: bool = False,
        hands_adapters: bool = False,
    ) -> None:
        self.version = 0
        self._packed_model = packed_model
        self._algorithm = algorithm
        self.optimizer = optimizer
        self._passes = passes
        self._reference = reference
        self._correction = correction
        self._distil_demonstrations = distil_demonstrations
        self._hands_adapters = hands_adapters

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self._packed_model.logprobs(groups)

    def scores(self, groups: Sequence[RolloutGroup]) -> TokenScores:
        return self._packed_model.scores(groups)

    def weights(self, copy: bool = False) -> Mapping[str, torch.Tensor]:
        model = self._packed_model
        weights = model.adapters() if self._hands_adapters else model.weights()
        return copy_to_cpu(weights) if copy else weights

    def engine_weights(self) -> Mapping[str, torch.Tensor]:
        """See :meth:`PackedModel.engine_weights`."""
        return self._packed_model.engine_weights()

    def snapshot(self, copy: bool = False, only_model: bool = False) -> WriteCheckpoint:
        packed_model = self._packed_model
        processor, group = packed_model.family.processor, packed_model.process_group
        return model_snapshot(
            packed_model.model, processor, self.optimizer, copy, group, only_model
        )

    def load_snapshot(self, checkpoint: Path) -> None:
        load_snapshot(checkpoint, self.optimizer, self._packed_model.process_group.rank)

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.version = state["version"]
        self.optimizer.load_state_dict(state["optimizer"])

    def update(self, experience: Experience) -> StepStats:
        """``algorithm.ppo_epochs`` passes over the batch, an optimizer step for each mini-batch.

        Raises:
            NonFiniteError: The loss or the gradient is not finite; the optimizer steps before it
                were taken, and the weights are those after them.
        """
        self._packed_model.model.train()
        mini_batches = self._mini_batches(experience)
        rollout_logprobs = rollout_logprobs_of(experience)
        steps: list[StepStats] = []
        for _ in range(self._passes):
            for index, batches in enumerate(mini_batches):
                stats = self._accumulate(experience, rollout_logprobs, batches)
                if experience.demonstrations:
                    own = experience.demonstrations[index]
                    stats["ptx_loss"] = self._add_ptx_gradient(own, experience.coefficients.ptx)
                stats["lr"] = self.optimizer.lr
                with record_function("mmr1/optimizer"):
                    stats["grad_norm"] = self.optimizer.step()
                self.version += 1
                steps.append(stats)
        return averaged(steps)

    def _mini_batches(self, experience: Experience) -> list[list[MicroBatch]]:
        """The micro-batches of each optimizer step of a pass."""
        groups = [scored.group for scored in experience.groups]
        return [
            self._packed_model.batches(groups, _learning(experience, index))
            for index in range(experience.mini_batches)
        ]

    def _accumulate(
        self,
        experience: Experience,
        rollout_logprobs: torch.Tensor,
        batches: Sequence[MicroBatch],
    ) -> StepStats:
        """Sum up the gradient over micro-batches; token means of what is logged."""
        sums, tokens = DeviceSums(), 0
        for batch in batches:
            with record_function("mmr1/forward"):
                scores = self._token_scores(batch)
            if not batch.groups:
                self._packed_model.backward(scores.logprobs.sum())
                continue
            sampled = _cut(rollout_logprobs, batch.rows, scores.logprobs)
            tokens += self._accumulate_batch(experience, sampled, batch, scores, sums)
        read = {"loss": 0.0, WIDEST_GAP: 0.0, **sums.read(), "tokens": float(tokens)}
        if experience.after_picture is not None:
            read = {GAP_AFTER_PICTURE: 0.0, TOKENS_AFTER_PICTURE: 0.0, **read}
        return self._means(self._packed_model.process_group.total(read))

    def _add_ptx_gradient(self, groups: Sequence[RolloutGroup], coefficient: float) -> float:
        model = self._packed_model
        if not self._distil_demonstrations:
            return add_nll_gradient(model, groups, coefficient)
        assert self._reference is not None, "the configuration asks for one"
        return add_distillation_gradient(model, groups, self._reference, coefficient)

    def _accumulate_batch(
        self,
        experience: Experience,
        rollout_logprobs: torch.Tensor,
        batch: MicroBatch,
        scores: TokenScores,
        sums: DeviceSums,
    ) -> int:
        """Backward of one micro-batch, and what is logged of it; its number of tokens.

        Nothing is read from the device, so that it never waits.
        """
        selected = _select_rows(experience, batch.rows, scores.logprobs)
        counting = _counting_places(experience, batch.rows, scores.logprobs)
        inputs = _loss_inputs(selected, rollout_logprobs, scores)
        correction = self._correction(
            inputs.old_logprobs, rollout_logprobs, selected.completion_mask
        )
        token_loss = self._algorithm.loss(inputs, correction)
        loss = (selected.loss_weights * token_loss).sum()
        self._packed_model.backward(loss)
        sums.add("loss", loss)
        for name, values in {
            **self._logged(inputs, rollout_logprobs, selected),
            "rollout/is_weight": correction,
        }.items():
            sums.add(name, values.detach().flatten()[counting].sum())
        if len(counting):
            gap = (inputs.old_logprobs - rollout_logprobs).flatten()[counting].abs()
            sums.widen(WIDEST_GAP, gap.max())
            if selected.after_picture is not None:
                after = selected.after_picture.flatten()[counting]
                sums.add(GAP_AFTER_PICTURE, (gap * after).sum())
                sums.add(TOKENS_AFTER_PICTURE, after.sum())
        return len(counting)

    def _token_scores(self, batch: MicroBatch) -> TokenScores:
        """With the KL over the vocabulary where the loss asks for it."""
        if self._reference is None:
            return self._packed_model.token_scores(batch)
        reference = self._reference.distributions(batch)
        self._packed_model.model.train()
        return self._packed_model.token_scores(batch, reference)

    def _means(self, sums: dict[str, float]) -> StepStats:
        """Loss and widest gap as they are, the rest per token; raises for an infinite loss.

        Without a token nothing was measured, and a mean of 0 would be taken for a measurement.
        """
        tokens = sums.pop("tokens")
        after_picture = sums.pop(TOKENS_AFTER_PICTURE, 0)
        whole = {name: sums.pop(name) for name in ("loss", WIDEST_GAP)}
        loss = whole["loss"]
        if not math.isfinite(loss):
            self.optimizer.zero_grad()
        check_finite(loss)
        gap = sums.pop(GAP_AFTER_PICTURE, 0.0)
        if after_picture:
            whole[GAP_AFTER_PICTURE] = gap / after_picture
        means = {name: value / tokens for name, value in sums.items()} if tokens else {}
        return {**whole, **means}

    def _logged(
        self, inputs: LossInputs, rollout_logprobs: torch.Tensor, selected: Experience
    ) -> dict[str, torch.Tensor]:
        gap = inputs.old_logprobs - rollout_logprobs
        ref = inputs.logprobs if selected.ref_logprobs is None else selected.ref_logprobs
        return {
            "entropy": inputs.entropy,
            "kl": k3(inputs.logprobs, ref) if inputs.full_kl is None else inputs.full_kl,
            "rollout/logprob_gap": gap.abs(),
            "rollout/kl": k3(rollout_logprobs, inputs.old_logprobs),
            **self._algorithm.metrics(inputs),
        }


def rollout_logprobs_of(experience: Experience) -> torch.Tensor:
    """``[B, R]`` float32: the engine's log-probs of the completions, followed by zeros."""
    rows = torch.zeros(experience.completion_mask.shape)
    completions = (c for scored in experience.groups for c in scored.group.completions)
    for row, completion in zip(rows, completions, strict=True):
        row[: len(completion.logprobs)] = torch.from_numpy(completion.logprobs)
    return rows


def _learning(experience: Experience, index: int) -> torch.Tensor:
    """``[B]`` bool: the sequences of mini-batch ``index`` whose gradient can be other than 0."""
    members = rows_of(experience.groups, experience.mini_batch_of, index)
    return members & experience.learning


def averaged(steps: Sequence[StepStats]) -> StepStats:
    """What the optimizer steps of a rollout logged: means, the largest where a name ends in
    ``_max``, the last where it ends in ``_last``, and the last learning rate.

    A step whose tokens are all masked did not measure what is a mean of tokens; the others count.

    >>> averaged([{"loss": 1.0, "x_max": 3.0, "lr": 2.0}, {"loss": 2.0, "x_max": 1.0, "lr": 1.0}])
    {'loss': 1.5, 'x_max': 3.0, 'lr': 1.0}
    """

    def merged(name: str, values: list[float]) -> float:
        if name == "lr" or name.endswith("_last"):
            return values[-1]
        return max(values) if name.endswith("_max") else fmean(values)

    names = dict.fromkeys(name for step in steps for name in step)
    return {name: merged(name, [step[name] for step in steps if name in step]) for name in names}


def _select_rows(experience: Experience, rows: torch.Tensor, like: torch.Tensor) -> Experience:
    """The given sequences of a batch, as wide as ``like`` ``[b, R]`` and on its device."""

    values = {f.name: getattr(experience, f.name) for f in fields(experience)}
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    cut: dict[str, Any] = {name: _cut(tensor, rows, like) for name, tensor in tensors.items()}
    return replace(experience, **cut)


def _cut(values: torch.Tensor, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    of_rows = values[rows]
    cut_rows = of_rows[:, : like.shape[1]] if of_rows.dim() > 1 else of_rows
    return cut_rows.to(like.device, non_blocking=True)


def _counting_places(
    experience: Experience, rows: torch.Tensor, like: torch.Tensor
) -> torch.Tensor:
    """``[N]`` int64 indices into ``like`` ``[b, R]``, flattened: the tokens that count.

    From the mask in main memory: the device would be waited for to know their number.
    """
    mask = experience.completion_mask[rows, : like.shape[1]]
    return mask.flatten().nonzero()[:, 0].to(like.device, non_blocking=True)


def _loss_inputs(
    selected: Experience, rollout_logprobs: torch.Tensor, scores: TokenScores
) -> LossInputs:
    return LossInputs(
        logprobs=scores.logprobs,
        old_logprobs=scores.logprobs.detach()
        if selected.old_logprobs is None
        else selected.old_logprobs,
        advantages=selected.advantages,
        entropy=scores.entropy,
        full_kl=scores.kl,
        chosen=selected.chosen,
        rollout_logprobs=rollout_logprobs,
        mask=selected.completion_mask,
        ref_logprobs=selected.ref_logprobs,
        kl_coef=selected.coefficients.kl,
        ppo_kl_coef=selected.coefficients.ppo_kl,
        entropy_coef=selected.coefficients.entropy,
    )
