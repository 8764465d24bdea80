"""A vision-language model that gives numbers: the critic's values, a reward model's rewards.

The language model's head stays where it is, unused, so that a saved one is an ordinary Hugging Face
directory with ``scalar_head.safetensors`` beside it; a critic can begin as a reward model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.micro_batches import MicroBatch, ProcessGroup
from mmr1.trainer.forward.scores import completion_states
from mmr1.trainer.forward.sequences import GroupInput, Read, completion_mask, to_rows
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.state import Digests, WriteCheckpoint, model_snapshot
from mmr1.trainer.models.weights import whole
from mmr1.types import RolloutGroup
from mmr1.vision.families.loading import model_parts, unwrapped
from mmr1.vision.features import FeatureCache

HEAD_FILE = "scalar_head.safetensors"


@dataclass(frozen=True, slots=True)
class Supervision:
    """The unit that a reward model judges: whole completions, or (``process``) each step.

    Attributes:
        step_separator: Text between two steps.
    """

    kind: Literal["outcome", "process"] = "outcome"
    step_separator: str = ""


OUTCOME = Supervision()


def supervision_of(path: str) -> Supervision:
    """The supervision of the reward model at ``path``, from its head's file."""
    with safe_open(Path(path) / HEAD_FILE, "pt") as file:
        metadata = file.metadata() or {}
    return Supervision(**json.loads(metadata["supervision"])) if metadata else OUTCOME


class ScalarModel(torch.nn.Module):
    """A transformers model, with or without adapters, and a linear head on its hidden states."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone
        base, parts = unwrapped(backbone), model_parts(backbone)
        size = base.config.get_text_config().hidden_size
        # Float32, as its outputs are compared with rewards; zero, so that it claims nothing yet.
        self.head = torch.nn.Linear(size, 1, device=base.device, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        if parts.lm_head.weight is not parts.embed_tokens.weight:
            parts.lm_head.requires_grad_(False)  # or the optimizer would hold a copy of it


def is_scalar_model(path: str) -> bool:
    return (Path(path) / HEAD_FILE).is_file()


def scalar_snapshot(
    model: ScalarModel,
    processor: Any,
    optimizer: Optimizer,
    copy: bool = False,
    supervision: Supervision = OUTCOME,
    process_group: ProcessGroup | None = None,
) -> WriteCheckpoint:
    """``state.model_snapshot`` with the head's file."""
    write = model_snapshot(model.backbone, processor, optimizer, copy, process_group)
    head = {n: whole(t).to("cpu", copy=True) for n, t in model.head.state_dict().items()}
    if process_group is not None and process_group.rank != 0:
        return write
    return partial(_write_head, head, supervision, write)


def _write_head(
    head: Mapping[str, torch.Tensor],
    supervision: Supervision,
    write: WriteCheckpoint,
    folder: Path,
) -> Digests:
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"supervision": json.dumps(asdict(supervision))}
    save_file(dict(head), folder / HEAD_FILE, metadata)
    return write(folder)


@dataclass(frozen=True, slots=True)
class PackedScalarModel:
    """Numbers at completion tokens.

    Attributes:
        model: Backbone and head.
        packed_model: Cuts groups into batches; its model is ``model.backbone``.
        read: ``before``: the state each token is drawn in (critic). ``at``: the state that the
            token leads to (reward model).
    """

    model: ScalarModel
    packed_model: PackedModel
    read: Read

    def values(self, batch: MicroBatch) -> torch.Tensor:
        """Values ``[b, R]`` float32 of the batch's completions. Differentiable."""
        own = self.packed_model
        values: torch.Tensor = own.process_group.run(
            _values,
            self.model,
            own.groups_of(batch),
            self.read,
            own.features,
            batch.run_tower,
            own.process_group.context,
        )
        return values if batch.groups else values[:0]

    @torch.no_grad()
    def group_values(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        """Values ``[B, R]`` without gradient or dropout, micro-batch by micro-batch."""
        self.model.eval()
        values = torch.zeros(completion_mask(groups).shape)
        for batch in self.packed_model.batches(groups):
            of_batch = self.values(batch)
            values[batch.rows, : of_batch.shape[1]] = of_batch.cpu()
        return values


def _values(
    model: ScalarModel,
    groups: Sequence[GroupInput],
    read: Read,
    features: FeatureCache | None,
    run_tower: bool,
    context: Context | None,
) -> torch.Tensor:
    states = completion_states(model.backbone, groups, read, features, run_tower, context)
    return to_rows(model.head(states.hidden.float())[:, 0], states.padded)


def rewards_of(scalar_model: PackedScalarModel, groups: Sequence[RolloutGroup]) -> torch.Tensor:
    """The number at the last token of each completion: ``[B]``."""
    return at_the_end(scalar_model.group_values(groups), groups)


def at_the_end(values: torch.Tensor, groups: Sequence[RolloutGroup]) -> torch.Tensor:
    """The entries of ``[B, R]`` at the last token of each completion: ``[B]``."""
    # Not the mask's sum: it leaves observations out.
    rows = [len(c.token_ids) for g in groups for c in g.completions]
    lengths = torch.tensor(rows, dtype=torch.int64)  # of a rank without any too
    return at_index(values, lengths - 1)


def at_index(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The entries of ``[B, R]`` at one index of each row: ``[B]``."""
    return values.gather(-1, index.to(values.device)[:, None])[:, 0]
