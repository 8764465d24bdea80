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
from mmr1.trainer.models.packed_model import PackedModel, read_metrics
from mmr1.trainer.models.reference import SupportsDistributions
from mmr1.trainer.models.state import WriteCheckpoint, load_snapshot, model_snapshot
from mmr1.trainer.models.weights import copy_to_cpu, model_adapters, model_weights
from mmr1.types import (
    Experience,
    LossCoefficients,
    Metric,
    RolloutGroup,
    StepStats,
    TokenBatch,
    merge_metrics,
)

GAP = "rollout/logprob_diff_mean"
WIDEST_GAP = "rollout/logprob_diff_max"
ROUTER_GAP = "rollout/frac_router_mismatch"
LAYERS_GAP = "rollout/frac_router_mismatch_per_layer"
ROUTER_LOSS = "router_aux_loss"
VIEW_GAP = "views/logprob_diff_mean"
KEPT_MASS_UPDATES = 10
"""Every so many updates of a cut distribution its kept mass is measured, by the whole head."""


class SentWeights(Protocol):
    """Weights that stay where they are, on ranks, until engines ask for them."""

    def send(self, engines: Sequence[Any], version: int) -> None:
        """Send them to these engines, actors on Ray, which then sample with them.

        Raises:
            TransferError: If not all engines have the weights.
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
        """The current weights, for ``load`` of the engines that belong to the policy.

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
        reference: Model to measure the KL over the vocabulary to, where the loss has it.
        correction: Correction of the engine's own probabilities; see
            ``losses.rollout_importance_weights``.
        sync_adapters_only: Engines are given the adapters alone, in place of merged weights.
        distil_demonstrations: The PTX term is the divergence from the reference at the
            demonstrations' tokens, and not their likelihood.
        router_loss_coefficient: Coefficient of the load-balancing loss; 0: the model computes none.
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
        self._check_support(groups)
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
        """Sum up the gradient over micro-batches; what is logged.

        Args:
            before: The policy's version before the update.
        """
        model, tokens, metrics = self._packed_model, experience.tokens, []
        measures = not model.distribution.keeps_all and before % KEPT_MASS_UPDATES == 0
        balanced = self._balanced_shares(batches)
        for batch, share in zip(batches, balanced, strict=True):
            reference = None
            if self._reference is not None:
                reference = self._reference.distributions(batch)
                model.model.train()  # it may be the same model
            with record_function("mmr1/forward"):
                scores = model.token_scores(batch, reference, measures)
            if not batch.groups:
                model.backward(scores.logprobs.sum())
                continue
            width, device = scores.logprobs.shape[1], scores.logprobs.device
            own = tokens.select(batch.rows, width, device)
            metrics.append(self._add_gradient(own, scores, experience.coefficients, before, share))
        nothing = {"loss": Metric(0.0, reduce="sum"), WIDEST_GAP: Metric(0.0, reduce="max")}
        merged = model.process_group.merge(merge_metrics([nothing, read_metrics(metrics)]))
        if not math.isfinite(loss := merged["loss"].sum):
            self.optimizer.zero_grad()
        check_finite(loss)
        values = {name: metric.value for name, metric in merged.items()}
        return {name: value for name, value in values.items() if value is not None}

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

    def _check_support(self, groups: Sequence[RolloutGroup]) -> None:
        """Refuse completions of a cut distribution without the ids that the engine kept."""
        if self._packed_model.distribution.keeps_all:
            return
        if any(c.support is None for group in groups for c in group.completions):
            raise ValueError(
                "rollout.top_p, top_k and min_p need an engine that returns the ids that it kept "
                "for each token (Completion.support); set rollout.engine=hf or vllm, or leave the "
                "keys out"
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
        before: int,
        balanced: float,
    ) -> dict[str, Metric]:
        """Run the backward of one micro-batch; returns what is logged of it.

        Nothing is read from the device, so that it never waits.

        Args:
            tokens: Tokens of the micro-batch.
            before: Statistics of before, as in ``_accumulate``.
            balanced: The micro-batch's share of the tokens of the load-balancing loss.
        """
        old, rollout = tokens.old_logprobs, tokens.rollout_logprobs
        old = scores.logprobs.detach() if old is None else old
        if tokens.other_view is not None:  # not comparable: as if this policy had sampled them
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
        metrics = {"loss": Metric(loss, reduce="sum")}
        if router_loss is not None:
            metrics[ROUTER_LOSS] = Metric(router_loss, reduce="sum")
        logged = {"entropy": x.entropy, **self._algorithm.metrics(x)}
        ref = x.logprobs if x.ref_logprobs is None else x.ref_logprobs
        logged["kl"] = k3(x.logprobs, ref) if x.full_kl is None else x.full_kl
        if scores.expert_gap is not None:
            logged[ROUTER_GAP] = (scores.expert_gap > 0).float()
            logged[LAYERS_GAP] = scores.expert_gap
        metrics |= {name: token_mean(values, x.mask) for name, values in logged.items()}
        return metrics | engine_metrics(tokens, x, correction, scores.kept_mass, before)


def token_mean(values: torch.Tensor, where: torch.Tensor) -> Metric:
    """The mean of ``[b, R]`` values over the tokens where a mask is True."""
    return Metric(torch.where(where, values.detach(), 0.0).sum(), where.sum())


def engine_metrics(
    tokens: TokenBatch,
    x: LossInputs,
    correction: torch.Tensor,
    kept_mass: torch.Tensor | None,
    version: int,
) -> dict[str, Metric]:
    """Return metrics of the engine's log-probs beside the policy's before the update.

    The gap of what the newest weights sampled is the engine's alone. What was sampled under another
    view has a separate gap. A token with one kept id has no gap, so those with more are logged too.

    Args:
        correction: Importance weights ``[b, R]``.
        kept_mass: See ``TokenScores``.
        version: The policy's before the update.
    """
    assert x.rollout_logprobs is not None, "every batch has the engine's"
    gap = (x.old_logprobs - x.rollout_logprobs).abs()
    same_view = x.mask if tokens.other_view is None else x.mask & ~tokens.other_view
    metrics = {
        GAP: token_mean(gap, same_view),
        WIDEST_GAP: Metric(torch.where(x.mask, gap, 0.0).max(), reduce="max"),
        "rollout/kl": token_mean(k3(x.rollout_logprobs, x.old_logprobs), same_view),
        "rollout/importance_weight_mean": token_mean(correction, same_view),
    }
    if tokens.other_view is not None:
        of_view = (x.old_logprobs - tokens.rollout_logprobs).abs()
        metrics[VIEW_GAP] = token_mean(of_view, x.mask & tokens.other_view)
    if tokens.after_picture is not None:
        metrics["rollout/logprob_diff_after_image"] = token_mean(gap, x.mask & tokens.after_picture)
    if tokens.versions is not None:
        metrics["rollout/logprob_diff_current"] = token_mean(
            gap, x.mask & (tokens.versions == version)
        )
    if tokens.kept is not None:
        several = same_view & (tokens.kept > 1)
        metrics["rollout/logprob_diff_several_ids"] = token_mean(gap, several)
        metrics["rollout/importance_weight_several_ids"] = token_mean(correction, several)
    if kept_mass is not None:
        metrics["policy/kept_mass_mean"] = token_mean(kept_mass, x.mask)
    return metrics
