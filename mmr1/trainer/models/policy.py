"""The policy in one process: its weights, its log-probs and its update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import record_function

from mmr1.algorithms.interface import LossInputs
from mmr1.algorithms.kl import k3
from mmr1.algorithms.ratios import Correction
from mmr1.trainer.algorithm import Algorithm
from mmr1.trainer.forward.micro_batches import MicroBatch
from mmr1.trainer.forward.routing import computed_tokens
from mmr1.trainer.forward.sequences import TokenScores
from mmr1.trainer.models.measured import MeasuredUpdate, ParameterNorms
from mmr1.trainer.models.nll import add_distillation_gradient, add_nll_gradient
from mmr1.trainer.models.optimizer import Optimizer, averaged, check_finite
from mmr1.trainer.models.packed_model import PackedModel, read_sums
from mmr1.trainer.models.reference import SupportsDistributions
from mmr1.trainer.models.state import WriteCheckpoint, load_snapshot, model_snapshot
from mmr1.trainer.models.weights import copy_to_cpu, model_adapters, model_weights
from mmr1.types import Experience, LossCoefficients, RolloutGroup, StepStats, TokenBatch

GAP = "rollout/logprob_gap"
WIDEST_GAP = "rollout/logprob_gap_max"
ROUTER_GAP = "rollout/router_gap"
LAYERS_GAP = "rollout/router_gap_per_layer"
ROUTER_LOSS = "router_aux_loss"
VIEW_GAP = "views/logprob_gap"
COUNTED = "tokens of "
"""Before a gap's name: the number of tokens that it is the mean of."""


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
    """The protocol of the policy, in one process or on many."""

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

    def measured_update(self, experience: Experience) -> MeasuredUpdate:
        """Learn as ``update`` does, to the same bits, and measure each optimizer step."""
        ...

    def weights(self, copy: bool = False) -> Weights:
        """The current weights, for ``load_weights`` of the engines that belong to the policy.

        With ``copy`` they stay as they are while training continues.
        """
        ...

    def snapshot(self, copy: bool = False, only_model: bool = False) -> WriteCheckpoint:
        """A function that writes the present policy into a checkpoint; see ``state.py``."""
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
        sync_adapters_only: Engines are given the adapters alone, in place of merged weights.
        distil_demonstrations: The PTX term is the divergence from the reference at the
            demonstrations' tokens, and not their likelihood.
        router_loss_coefficient: Of the load-balancing loss; 0: the model computes none.
    """

    def __init__(
        self,
        packed_model: PackedModel,
        algorithm: Algorithm,
        optimizer: Optimizer,
        passes: int,
        reference: SupportsDistributions | None = None,
        correction: Correction | None = None,
        distil_demonstrations: bool = False,
        sync_adapters_only: bool = False,
        router_loss_coefficient: float = 0.0,
    ) -> None:
        self.version = 0
        self._packed_model = packed_model
        self._algorithm = algorithm
        self.optimizer = optimizer
        self._passes = passes
        self._reference = reference
        self._correction = correction
        self._distil_demonstrations = distil_demonstrations
        self._sync_adapters_only = sync_adapters_only
        self._router_loss_coefficient = router_loss_coefficient

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return self._packed_model.scores(groups).logprobs

    def scores(self, groups: Sequence[RolloutGroup]) -> TokenScores:
        return self._packed_model.scores(groups)

    def weights(self, copy: bool = False) -> Mapping[str, torch.Tensor]:
        model = self._packed_model.model
        weights = model_adapters(model) if self._sync_adapters_only else model_weights(model)
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
        return averaged(self._optimizer_steps(experience, self.optimizer.step))

    def measured_update(self, experience: Experience) -> MeasuredUpdate:
        """Learn as :meth:`update` does, to the same bits, and measure each optimizer step."""
        norms: list[ParameterNorms] = []

        def step() -> StepStats:
            stats, of_step = self.optimizer.measured_step()
            norms.append(of_step)
            return stats

        taken = self.optimizer.steps_taken
        steps = self._optimizer_steps(experience, step)
        return MeasuredUpdate(
            averaged(steps), taken, self.optimizer.names, tuple(steps), tuple(norms)
        )

    def _optimizer_steps(
        self, experience: Experience, step: Callable[[], StepStats]
    ) -> list[StepStats]:
        model = self._packed_model
        model.model.train()
        groups = [scored.group for scored in experience.groups]
        self._check_experts(groups)
        mini_batches = experience.mini_batches
        cut = [model.batches(groups, mini_batch.learning) for mini_batch in mini_batches]
        before = self.version
        steps: list[StepStats] = []
        for _ in range(self._passes):
            for mini_batch, batches in zip(mini_batches, cut, strict=True):
                stats = self._accumulate(experience, batches, before)
                if ptx := experience.coefficients.ptx:
                    stats["ptx_loss"] = self._add_ptx_gradient(mini_batch.demonstrations, ptx)
                with record_function("mmr1/optimizer"):
                    stats |= step()
                self.version += 1
                steps.append(stats)
        return steps

    def _accumulate(
        self, experience: Experience, batches: Sequence[MicroBatch], before: int
    ) -> StepStats:
        """Sum up the gradient over micro-batches; token means of what is logged.

        Args:
            before: The policy's version before the update.
        """
        model, tokens, numbers, counted = self._packed_model, experience.tokens, [], 0
        balanced = self._balanced_shares(batches)
        for batch, share in zip(batches, balanced, strict=True):
            reference = None
            if self._reference is not None:
                reference = self._reference.distributions(batch)
                model.model.train()  # it may be the same model
            with record_function("mmr1/forward"):
                scores = model.token_scores(batch, reference)
            if not batch.groups:
                model.backward(scores.logprobs.sum())
                continue
            width, device = scores.logprobs.shape[1], scores.logprobs.device
            # From the mask in main memory: the device would be waited for to know their number.
            counting = tokens.mask[batch.rows, :width].flatten().nonzero()[:, 0]
            counted += len(counting)
            own = tokens.select(batch.rows, width, device)
            counting = counting.to(device, non_blocking=True)
            coefficients = experience.coefficients
            numbers.append(self._add_gradient(own, scores, coefficients, counting, before, share))
        read = {"loss": 0.0, WIDEST_GAP: 0.0, **read_sums(numbers), "tokens": float(counted)}
        for name in _means_apart(tokens, before):
            read = {name: 0.0, COUNTED + name: 0.0, **read}
        return self._means(model.process_group.total(read))

    def _check_experts(self, groups: Sequence[RolloutGroup]) -> None:
        """Refuse completions without the experts that they are to be compared with."""
        routers = self._packed_model.routers
        if routers is None or not routers.compares:
            return
        if any(c.routed_experts is None for group in groups for c in group.completions):
            raise ValueError(
                "algorithm.router_replay needs an engine that returns the experts of each token "
                "(Completion.routed_experts); set rollout.engine=hf, or leave the key out"
            )

    def _balanced_shares(self, batches: Sequence[MicroBatch]) -> list[float]:
        """Each micro-batch's share of the tokens of all ranks, by which its load counts."""
        if not self._router_loss_coefficient:
            return [0.0] * len(batches)
        tokens = [float(computed_tokens(batch.groups)) for batch in batches]
        total = self._packed_model.process_group.total({"tokens": sum(tokens)})["tokens"]
        return [count / total for count in tokens]

    def _add_ptx_gradient(self, groups: Sequence[RolloutGroup], coefficient: float) -> float:
        model = self._packed_model
        if not self._distil_demonstrations:
            return add_nll_gradient(model, groups, coefficient)
        assert self._reference is not None, "the configuration asks for one"
        return add_distillation_gradient(model, groups, self._reference, coefficient)

    def _add_gradient(
        self,
        tokens: TokenBatch,
        scores: TokenScores,
        coefficients: LossCoefficients,
        counting: torch.Tensor,
        before: int,
        balanced: float,
    ) -> dict[str, torch.Tensor]:
        """Run the backward of one micro-batch; returns sums over its tokens of what is logged.

        Nothing is read from the device, so that it never waits.

        Args:
            tokens: Those of the micro-batch.
            counting: ``[N]`` int64 indices into ``[b, R]``, flattened: the tokens that count.
            before: As in ``_accumulate``.
            balanced: The micro-batch's share of the tokens of the load-balancing loss.
        """
        old, rollout = tokens.old_logprobs, tokens.rollout_logprobs
        old = scores.logprobs.detach() if old is None else old
        view_gap = {}
        if tokens.other_view is not None:  # not comparable: as if this policy had sampled them
            view_gap = {VIEW_GAP: (old - rollout).abs()}
            rollout = torch.where(tokens.other_view, old, rollout)
        x = LossInputs(
            logprobs=scores.logprobs,
            old_logprobs=old,
            advantages=tokens.advantages,
            entropy=scores.entropy,
            mask=tokens.mask,
            ref_logprobs=tokens.ref_logprobs,
            kl_coef=coefficients.kl,
            entropy_coef=coefficients.entropy,
            full_kl=scores.kl,
            chosen=tokens.chosen,
            rollout_logprobs=rollout,
            ppo_kl_coef=coefficients.ppo_kl,
            masked_logprobs=tokens.masked_logprobs,
        )
        correction = torch.ones_like(x.old_logprobs)
        if self._correction is not None:
            correction = self._correction(x.old_logprobs, rollout, x.mask)
        loss = (tokens.loss_weights * self._algorithm.loss(x, correction)).sum()
        router_loss = None
        if scores.router_loss is not None:
            router_loss = balanced * scores.router_loss
            loss = loss + self._router_loss_coefficient * router_loss
        self._packed_model.backward(loss)
        gap = (x.old_logprobs - rollout).abs()
        ref = x.logprobs if x.ref_logprobs is None else x.ref_logprobs
        logged = {
            "entropy": x.entropy,
            "kl": k3(x.logprobs, ref) if x.full_kl is None else x.full_kl,
            GAP: gap,
            "rollout/kl": k3(rollout, x.old_logprobs),
            **self._algorithm.metrics(x),
            "rollout/is_weight": correction,
            **view_gap,
        }
        if scores.expert_gap is not None:
            logged[ROUTER_GAP] = (scores.expert_gap > 0).float()
            logged[LAYERS_GAP] = scores.expert_gap
        counted = {name: values.detach().flatten()[counting] for name, values in logged.items()}
        sums = {"loss": loss.detach(), **{name: values.sum() for name, values in counted.items()}}
        if router_loss is not None:
            sums[ROUTER_LOSS] = router_loss.detach()
        if len(counting):
            sums[WIDEST_GAP] = counted[GAP].max()
            for name, apart in _means_apart(tokens, before).items():
                own = apart.flatten()[counting]
                sums[name] = (counted.get(name, counted[GAP]) * own).sum()
                sums[COUNTED + name] = own.sum()
        return sums

    def _means(self, sums: dict[str, float]) -> StepStats:
        """The loss and the widest gap as they are, the rest per token; raises if it is infinite.

        Without a token nothing was measured, and a mean of 0 would be taken for a measurement.
        """
        tokens = sums.pop("tokens")
        apart = [name.removeprefix(COUNTED) for name in sums if name.startswith(COUNTED)]
        gaps = {name: (sums.pop(name), sums.pop(COUNTED + name)) for name in apart}
        named = ("loss", WIDEST_GAP, ROUTER_LOSS)
        whole = {name: sums.pop(name) for name in named if name in sums}
        loss = whole["loss"]
        if not math.isfinite(loss):
            self.optimizer.zero_grad()
        check_finite(loss)
        whole |= {name: gap / count for name, (gap, count) in gaps.items() if count}
        means = {name: value / tokens for name, value in sums.items()} if tokens else {}
        return {**whole, **means}


def _means_apart(tokens: TokenBatch, version: int) -> dict[str, torch.Tensor]:
    """Tokens that a mean is over, ``[B, R]`` bool, by its name, where it is not over all.

    The gap of what the newest weights sampled is the engine's alone. What was sampled under another
    view has a separate gap.
    """
    apart: dict[str, torch.Tensor] = {}
    if tokens.other_view is not None:
        comparable = ("rollout/kl", "rollout/is_weight", GAP)
        apart |= dict.fromkeys(comparable, ~tokens.other_view) | {VIEW_GAP: tokens.other_view}
    if tokens.after_picture is not None:
        apart["rollout/logprob_gap_after_picture"] = tokens.after_picture
    if tokens.versions is not None:
        apart["rollout/logprob_gap_newest"] = tokens.versions == version
    return apart
