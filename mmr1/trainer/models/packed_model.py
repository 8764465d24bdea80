"""A model and its packed forward, shared by policy, reference and offline training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.profiler import record_function

from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.context_packing import frame_parts
from mmr1.trainer.forward.logprob_head import Distributions
from mmr1.trainer.forward.micro_batches import (
    MicroBatch,
    ProcessGroup,
    SingleProcess,
    micro_batches,
)
from mmr1.trainer.forward.routing import RouterUse
from mmr1.trainer.forward.scores import completion_distributions, completion_scores
from mmr1.trainer.forward.sequences import GroupInput, ModelInputs, TokenScores, completion_mask
from mmr1.trainer.models.parts import known_to_engines
from mmr1.trainer.models.weights import copy_into, model_adapters, model_weights
from mmr1.types import Message, Metric, RolloutGroup, Sample, TextPart, merge_metrics
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.families.loading import is_admitted
from mmr1.vision.features import FeatureCache

_SHORT = Sample("short", (Message("user", (TextPart("."),)),))


@dataclass(frozen=True, slots=True)
class PackedModel:
    """Computes log-probs and entropies of completions by packed forwards.

    Attributes:
        inputs: Builds what the model is fed; shared by all models of a training step.
        distribution: The one that completions are sampled from.
        budget: Largest cost of a forward pass on a rank, in tokens; see ``micro_batches``.
        vision_token_cost: Cost of a vision token in the tower, in language-model tokens.
        features: Keeps the vision features of a frozen tower; None where the tower is trained.
        process_group: The ranks that compute together.
        jsd_beta: Weight that chooses the divergence from a reference; see :func:`kl.divergence`.
        routers: Use of the routers of experts in its forwards; None: nothing.
    """

    model: Any
    inputs: ModelInputs
    distribution: Distribution
    budget: int
    vision_token_cost: float = 1.0
    features: FeatureCache | None = None
    process_group: ProcessGroup = field(default_factory=SingleProcess)
    jsd_beta: float = 1.0
    routers: RouterUse | None = None

    @property
    def family(self) -> ModelFamily:
        return self.inputs.family

    def batches(
        self,
        groups: Sequence[RolloutGroup],
        keep: torch.Tensor | None = None,
        whole: bool = False,
    ) -> list[MicroBatch]:
        """The completions of B sequences, or those that ``keep`` ``[B]`` names, cut by cost.

        ``whole`` never cuts a group, for losses that compare its completions.
        """
        vision_token_cost = self.vision_token_cost if self.features is None else 0.0
        context = self.process_group.context
        if context is not None and not self.family.shares_prompts:
            vision_token_cost *= context.size  # each rank encodes all
        batches = self.process_group.lockstep_batches(
            micro_batches(
                self.inputs.of(groups),
                self.budget * (1 if context is None else context.size),
                vision_token_cost,
                keep,
                whole,
                self.inputs.family.shares_prompts or is_admitted(self.model),
            )
        )
        following = [*(batch.groups for batch in batches[1:]), ()]
        return [replace(b, after=a) for b, a in zip(batches, following, strict=False)]

    def token_scores(
        self,
        batch: MicroBatch,
        reference: Distributions | None = None,
        measure_kept_mass: bool = False,
    ) -> TokenScores:
        """Log-probs and entropies ``[b, R]`` of the batch's completions. Differentiable.

        With a reference's distributions at the same tokens, the divergence from them too. An empty
        batch takes part in the collective calls: it gives ``[0, 1]`` numbers.
        """
        scores: TokenScores = self.process_group.run(
            completion_scores,
            self.model,
            self.groups_of(batch),
            self.distribution,
            self.features,
            run_tower=batch.run_tower,
            context=self.process_group.context,
            routers=self.routers if batch.groups else None,
            measure_kept_mass=measure_kept_mass,
            **({} if reference is None else {"reference": reference, "jsd_beta": self.jsd_beta}),
        )
        if batch.groups:
            return scores
        kl = None if scores.kl is None else scores.kl[:0]
        return TokenScores(scores.logprobs[:0], scores.entropy[:0], kl)

    def distributions(self, batch: MicroBatch) -> Distributions:
        """The distributions that the model would draw the batch's tokens from. No gradient."""
        self.model.eval()
        return self.process_group.run(
            completion_distributions,
            self.model,
            self.groups_of(batch),
            self.features,
            batch.run_tower,
            self.process_group.context,
        )

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of a part of the batch's loss, which the ranks' parts add up to."""
        if loss.requires_grad:  # not of a text where only the projector is trained
            with record_function("mmr1/backward"):
                # Ranks' gradients are averaged, and should be added up.
                (loss * self.process_group.size).backward()

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """``[B, R]`` without gradient or dropout, micro-batch by micro-batch."""
        return self.scores(groups).logprobs

    @torch.no_grad()
    def scores(self, groups: Sequence[RolloutGroup]) -> TokenScores:
        """Log-probs and entropies ``[B, R]`` without gradient or dropout, in main memory."""
        self.model.eval()
        done = []  # read from the device when all are, so that it never waits
        for batch in self.batches(groups):
            done.append((batch, self.token_scores(batch)))
        shape = completion_mask(groups).shape
        logprobs, entropy = torch.zeros(shape), torch.zeros(shape)
        for batch, of_batch in done:
            if batch.groups:
                width = of_batch.logprobs.shape[1]
                logprobs[batch.rows, :width] = of_batch.logprobs.cpu()
                entropy[batch.rows, :width] = of_batch.entropy.cpu()
        return TokenScores(logprobs, entropy)

    def groups_of(self, batch: MicroBatch) -> tuple[GroupInput, ...]:
        """The groups that go through the network: for an empty batch a short text.

        Its media, and those of the batch after it, begin to be prepared, where they go through the
        tower here: of a context each rank has its part.
        """
        context = self.process_group.context if self.family.shares_prompts else None
        groups = (*batch.groups, *batch.after)
        media = list({m.digest: m for group in groups for m in group.all_media}.values())
        if context is not None:
            parts = [part for m in media for part in frame_parts(m, context.size)]
            media = [part for rank, part in parts if rank == context.rank]
        for medium in media:
            if self.features is None or medium.digest not in self.features:
                medium.begin()
        return batch.groups or (_short_text(self.family),)

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take over the weights of another model of the same architecture, without adapters."""
        copy_into(self.model.state_dict(), weights)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The weights by the names of the plain transformers model; see ``weights.py``."""
        return model_weights(self.model)

    def adapters(self) -> Mapping[str, torch.Tensor]:
        """See :func:`weights.model_adapters`."""
        return model_adapters(self.model)

    def engine_weights(self) -> Mapping[str, torch.Tensor]:
        """The part of :meth:`weights` that an engine which read the model's files needs."""
        return model_weights(self.model, left_out=known_to_engines(self.model))


def _short_text(family: ModelFamily) -> GroupInput:
    """A short text, for a rank that takes part in a forward without a sequence of its own."""
    read = family.read_prompt(family.render_prompt(_SHORT), ())
    token = torch.tensor([family.tokenizer.eos_token_id])
    start = read.completion_start
    return GroupInput(read.ids, read.positions, start, (), (token,), arguments=read.arguments)


def read_metrics(of_batches: Sequence[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Read the metrics of micro-batches from the device, and merge them in float64.

    They stay there until all are known, and are read in one transfer. Read in every micro-batch, a
    GPU would idle while the next one is laid out.
    """
    numbers = [x for batch in of_batches for metric in batch.values() for x in _numbers(metric)]
    read = iter(torch.stack(numbers).tolist() if numbers else [])
    return merge_metrics(
        {name: Metric(next(read), next(read), metric.reduce) for name, metric in batch.items()}
        for batch in of_batches
    )


def _numbers(metric: Metric) -> list[torch.Tensor]:
    return [torch.as_tensor(x).detach().double() for x in (metric.sum, metric.count)]


def total_loss(group: ProcessGroup, of_batches: Sequence[Mapping[str, Metric]]) -> float:
    """The ``loss`` of all micro-batches of all ranks."""
    own = {"loss": Metric(0.0, reduce="sum"), **read_metrics(of_batches)}
    return float(group.merge(own)["loss"].sum)
