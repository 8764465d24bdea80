"""Step files, read and compared quantity by quantity, in the order of cause.

``mmr1.trainer.runs.step_file`` documents the tensors and the manifest. Of the files of other
projects only ``row/length``, ``row/prompt``, ``token/ids`` and ``token/mask`` are required; a
quantity that one of two files lacks is not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open

SCHEMA = "mmr1-step/1"
REQUIRED = ("row/length", "row/prompt", "token/ids", "token/mask")
Tensors = Mapping[str, torch.Tensor]


class AuditError(ValueError):
    """A step that cannot be recomputed or compared, with the reason."""


@dataclass(frozen=True, slots=True)
class StepFile:
    """A step file.

    Attributes:
        path: Its place on the disk.
        tensors: Tensors by name.
        manifest: Values that are no tensors.
    """

    path: Path
    tensors: Tensors
    manifest: Mapping[str, Any]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each completion."""
        return [int(length) for length in self.tensors["row/length"]]

    @property
    def prompts(self) -> list[int]:
        """Prompt of each completion."""
        return [int(prompt) for prompt in self.tensors["row/prompt"]]

    @property
    def kept(self) -> list[list[torch.Tensor] | None]:
        """Ids that the engine kept for each token of each completion, none where it kept all.

        None for a completion of which the file says nothing.
        """
        if "token/kept" not in self.tensors:
            return [None] * len(self.lengths)
        ids = torch.split(
            self.tensors["token/kept_ids"].long(), self.tensors["token/kept"].tolist()
        )
        tokens = iter(ids)
        return [list(islice(tokens, length)) for length in self.lengths]


def read_step_file(path: Path) -> StepFile:
    """Read a step file.

    Raises:
        AuditError: If it cannot be read, has another schema or lacks a required tensor.
    """
    try:
        with safe_open(str(path), "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise AuditError(f"{path} cannot be read: {error}") from error
    try:
        manifest = json.loads(metadata["step"])
    except (KeyError, ValueError) as error:
        raise AuditError(f"{path} is no step file: its metadata have no 'step'") from error
    if manifest.get("schema") != SCHEMA:
        raise AuditError(f"{path} has the schema {manifest.get('schema')}; this reads {SCHEMA}")
    if missing := [name for name in REQUIRED if name not in tensors]:
        raise AuditError(f"{path} lacks {', '.join(missing)}")
    return StepFile(path, tensors, manifest)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The difference that two sound computations of a quantity may have.

    Attributes:
        absolute: Bound in the quantity's unit.
        relative: Share of the value; for norms of parameters, of the value plus a thousandth of
            the norm over all of them, since the smallest parts are rounding noise.
    """

    absolute: float = 0.0
    relative: float = 0.0


@dataclass(frozen=True, slots=True)
class Rung:
    """A quantity of the ladder.

    Attributes:
        name: Its tensor, or ``prompt/text`` of the manifest.
        meaning: Where a difference comes from if everything above it is equal.
        tolerance: Tolerance in float32.
    """

    name: str
    meaning: str
    tolerance: Tolerance = Tolerance()

    @property
    def of_update(self) -> bool:
        """True if the quantity belongs to an optimizer step."""
        return self.name.startswith(("update/", "param/"))


LOGPROB = Tolerance(2e-4, 2e-4)
LADDER = (
    Rung("prompt/media", "media of the raw row against those of the prompt"),
    Rung("prompt/text", "chat template, system prompt, question"),
    Rung("prompt/ids", "tokenizer or placeholder expansion"),
    Rung("media/grid", "resize budget or rounding"),
    Rung(
        "media/patch_mean",
        "decoding, resampling, mean and std, channel order",
        Tolerance(2e-3, 2e-3),
    ),
    Rung("row/length", "length of completions"),
    Rung("token/ids", "completions"),
    Rung("row/reward", "weights of the reward functions", Tolerance(1e-6, 1e-6)),
    Rung("token/mask", "which tokens count"),
    Rung("token/kept", "what top-k, top-p and min-p keep"),
    Rung("token/rollout_logp", "engine: weights, temperature, positions, pixels", LOGPROB),
    Rung("token/old_logp", "forward pass of the trainer", LOGPROB),
    Rung("token/ref_logp", "reference model", LOGPROB),
    Rung("token/advantage", "baseline, scale, groups", Tolerance(1e-4, 1e-4)),
    Rung("token/weight", "length normaliser and its scope", Tolerance(0.0, 1e-5)),
    Rung("update/loss", "ratio, clip, KL, entropy", Tolerance(1e-5, 1e-4)),
    Rung("param/grad_norm", "backward: frozen parts, micro-batches", Tolerance(1e-6, 2e-4)),
    Rung("update/grad_norm", "norm over all parameters", Tolerance(1e-6, 2e-4)),
    Rung("update/lr", "schedule", Tolerance(0.0, 1e-6)),
    Rung("param/delta_norm", "optimizer: clip, betas, decay", Tolerance(1e-9, 5e-4)),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The comparison of one quantity.

    Attributes:
        name: Quantity.
        verdict: Outcome; ``absent`` if one side has no such quantity.
        step: Optimizer step, from 0; None for quantities of the whole batch.
        gap: Largest absolute difference; None if it is no number.
        place: Where the first difference is, with both values.
        meaning: See :class:`Rung`.
    """

    name: str
    verdict: Literal["equal", "differs", "absent"]
    step: int | None
    gap: float | None
    place: str
    meaning: str


def compare(
    left: StepFile,
    right: StepFile,
    tolerances: Mapping[tuple[str, int | None], Tolerance] | None = None,
) -> Iterator[Finding]:
    """Compare two steps, in the order of cause: quantities of an update follow step by step.

    Args:
        left, right: Steps; places are described by ``right``.
        tolerances: Wider tolerances by quantity and optimizer step; see :class:`Rung` for others.
    """
    for rung in (rung for rung in LADDER if not rung.of_update):
        yield _compared(rung, left, right, None, tolerances or {})
    for step in range(max(_optimizer_steps(left), _optimizer_steps(right))):
        for rung in (rung for rung in LADDER if rung.of_update):
            yield _compared(rung, left, right, step, tolerances or {})


def _optimizer_steps(file: StepFile) -> int:
    return len(file.tensors["update/loss"]) if "update/loss" in file.tensors else 0


def _compared(
    rung: Rung,
    left: StepFile,
    right: StepFile,
    step: int | None,
    tolerances: Mapping[tuple[str, int | None], Tolerance],
) -> Finding:
    if rung.name == "prompt/text":
        return _compared_texts(rung, left.manifest.get("prompts"), right.manifest.get("prompts"))
    first, second = left.tensors.get(rung.name), right.tensors.get(rung.name)
    first, second = quantity_at(first, step), quantity_at(second, step)
    if first is None or second is None:
        return Finding(rung.name, "absent", step, None, "", rung.meaning)
    if first.shape != second.shape:
        place = f"shapes {list(first.shape)} / {list(second.shape)}"
        return Finding(rung.name, "differs", step, None, place, rung.meaning)
    gap = difference(first, second).flatten()
    wrong = (gap > allowed(rung, second, tolerances.get((rung.name, step)))).nonzero()[:, 0]
    largest = float(gap.max()) if len(gap) else 0.0
    if len(wrong) == 0:
        return Finding(rung.name, "equal", step, largest, "", rung.meaning)
    index = int(wrong[0])
    values = f"{float(first.flatten()[index]):.6g} / {float(second.flatten()[index]):.6g}"
    where = place_of(rung.name, index, right, step)
    place = f"{where}: {values} ({len(wrong)} of {len(gap)})"
    return Finding(rung.name, "differs", step, largest, place, rung.meaning)


def quantity_at(values: torch.Tensor | None, step: int | None) -> torch.Tensor | None:
    """Return the values of an optimizer step, or all for None; None if there are none."""
    if values is None or step is None:
        return values
    return values[step : step + 1] if step < len(values) else None


def difference(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the absolute difference in float64: 0 where both are NaN, inf where one is."""
    a, b = first.double(), second.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)


def allowed(rung: Rung, values: torch.Tensor, wider: Tolerance | None = None) -> torch.Tensor:
    """Return the tolerated difference of each value, flattened."""
    absolute = max(rung.tolerance.absolute, wider.absolute if wider else 0.0)
    relative = max(rung.tolerance.relative, wider.relative if wider else 0.0)
    return absolute + relative * scale_of(rung.name, values)


def scale_of(name: str, values: torch.Tensor) -> torch.Tensor:
    """Return the scale of each value that a relative tolerance is a share of, flattened."""
    scale = values.double().flatten().abs().nan_to_num()
    if name.startswith("param/"):
        scale = scale + scale.square().sum().sqrt() * 1e-3
    return scale


def _compared_texts(rung: Rung, left: Any, right: Any) -> Finding:
    if left is None or right is None:
        return Finding(rung.name, "absent", None, None, "", rung.meaning)
    if len(left) != len(right):
        place = f"{len(left)} / {len(right)} prompts"
        return Finding(rung.name, "differs", None, None, place, rung.meaning)
    for number, (first, second) in enumerate(zip(left, right, strict=True)):
        if first != second:
            at = _first_difference(first, second)
            shown = f"{first[at : at + 24]!r} / {second[at : at + 24]!r}"
            place = f"prompt {number}, character {at}: {shown}"
            return Finding(rung.name, "differs", None, None, place, rung.meaning)
    return Finding(rung.name, "equal", None, 0.0, "", rung.meaning)


def _first_difference(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def place_of(name: str, index: int, file: StepFile, step: int | None) -> str:
    """Describe an element of a quantity: its prompt, completion and token, or its parameter."""
    if step is not None:
        names = file.manifest.get("parameters") or []
        parameter = f", {names[index]}" if name.startswith("param/") and index < len(names) else ""
        return f"optimizer step {step + 1}{parameter}"
    if name == "prompt/media":
        rows = file.manifest.get("rows") or []
        return f"prompt {index}" + (f", row {rows[index]}" if index < len(rows) else "")
    if name == "prompt/ids":
        prompt, token, length = _part(file.tensors["prompt/length"].tolist(), index)
        return f"prompt {prompt}, token {token} of {length}"
    if name == "media/grid":
        return f"medium {index // 3}"
    if name == "media/patch_mean":
        patches = file.tensors["media/grid"].prod(1).tolist()
        medium, patch, count = _part(patches, index // 3)
        return f"medium {medium}, patch {patch} of {count}, {'rgb'[index % 3]}"
    if name.startswith("token/"):
        row, token, length = _part(file.lengths, index)
        return f"prompt {file.prompts[row]}, completion {row}, token {token} of {length}"
    if name.startswith("row/"):
        return f"prompt {file.prompts[index]}, completion {index}"
    return f"element {index}"


def _part(lengths: Sequence[int], index: int) -> tuple[int, int, int]:
    """Return the part that an index falls into, its place there and the part's length."""
    for part, length in enumerate(lengths):
        if index < length:
            return part, index, length
        index -= length
    return len(lengths), index, 0
