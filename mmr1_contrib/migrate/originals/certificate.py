"""A certificate: our results for rows, replies, videos and a batch, beside the original's."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoImageProcessor, AutoProcessor

from mmr1 import __version__
from mmr1.algorithms.interface import LossInputs
from mmr1.config import Config, PluginConfig
from mmr1.config.file import load_config
from mmr1.config.rewards import RewardsConfig
from mmr1.data.constants import constant
from mmr1.data.rendering import renderer
from mmr1.data.sources import load_samples
from mmr1.files import atomic
from mmr1.pieces import function
from mmr1.rewards.composite import CompositeReward
from mmr1.rewards.item import RewardItem
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.types import Completion, Prompt, Reward, RolloutGroup, Sample, ScoredGroup
from mmr1.vision.budget import VideoBudget, fit_frame, frame_indices, shown_frames
from mmr1.vision.build import family_of
from mmr1.vision.families.registry import DEFAULT_FAMILY, FAMILIES
from mmr1.vision.families.tiny import new_model
from mmr1_contrib.migrate.originals.projects import Asked, Batch, Fork, Original, VideoR1
from mmr1_contrib.migrate.originals.projects import original as project_of
from mmr1_contrib.migrate.originals.rows import Row, completions, write

ROWS, REPLIES, VIDEOS = 200, 4, 300
SIZES = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
"""transformers' names of the limits."""
_SHOWN = 5


@dataclass(slots=True)
class Check:
    """One comparison.

    Attributes:
        name: What was compared.
        compared: How many.
        equal: How many of them were equal.
        note: How it was compared.
        differences: The first that were not.
    """

    name: str
    note: str
    compared: int = 0
    equal: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, theirs: Any, ours: Any, what: str) -> None:
        self.compared += 1
        self.equal += theirs == ours
        if theirs != ours and len(self.differences) < _SHOWN:
            self.differences.append(f"{what}: {_short(theirs)} there, {_short(ours)} here")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 160 else f"{text[:100]} … {text[-50:]}"


def certify(
    recipe: str,
    config: Config,
    root: Path,
    output: Path,
    rows: int = ROWS,
    commit: str | None = None,
    processor: str | None = None,
) -> list[Check]:
    """Compare, and write ``certificate.json`` and ``certificate.md`` into ``output``.

    Args:
        recipe: Its name.
        config: Its exact configuration, which names the checkout's prompt and rewards.
        root: The checkout of the original.
        output: A folder.
        rows: Rows to compare; a hundred of them have replies.
        commit: Of a copy that git does not know.
        processor: What to call the model whose processor is used; its path for None.

    Raises:
        ValueError: It is not a checkout of the original, is at another commit, or a part of it
            cannot be run here.
    """
    theirs, at = project_of(recipe, root), _commit(root, commit)
    with tempfile.TemporaryDirectory() as name, redirect_stdout(StringIO()):  # its functions print
        folder = Path(name)
        made = write(folder, theirs.row, rows)
        checks = [*_of_rows(theirs, config, folder, made), _loss(theirs, config)]
        if isinstance(theirs, Fork) and theirs.video is not None:
            checks.append(_frames(theirs, config))
        if isinstance(theirs, VideoR1):
            checks.append(_bonuses(theirs, config))
    _write(output, recipe, processor or config.model.path, root, at, theirs, checks)
    return checks


# --- Prompts, sizes and rewards -------------------------------------------------------------------


def _of_rows(
    theirs: Original, config: Config, folder: Path, rows: Sequence[Row]
) -> Iterator[Check]:
    texts = Check("prompts", "the text after the chat template")
    ids = Check("tokens", "token by token, with those of the picture or video")
    sizes = Check("grids", "frames, rows and columns of patches of the picture or video")
    pixels = Check("pixels", "of the patches, normalised, to 1e-5; pictures resized by Pillow")
    rewards = Check("rewards", "of each reply and each function, called with the row's columns")
    data = config.data.changed(train=None, media_root=str(folder))
    samples = load_samples(folder / "rows.jsonl", data)
    family: Any = family_of(config)
    if not family.shares_prompts:
        raise ValueError(f"model.path '{config.model.path}': give a Qwen-VL model's processor")
    processor = AutoProcessor.from_pretrained(config.model.path)
    processor.image_processor = AutoImageProcessor.from_pretrained(config.model.path, backend="pil")
    render, draw = renderer(family, config), random.Random(1)
    given = config.data.image
    limits = {"min_pixels": given.min_pixels, "max_pixels": given.max_pixels}
    items: list[RewardItem] = []
    expected: list[dict[str, float]] = []
    for number, (row, asked, sample) in enumerate(
        zip(rows, theirs.ask(folder, rows), samples, strict=True)
    ):
        text = processor.apply_chat_template(
            asked.messages, tokenize=False, add_generation_prompt=True
        )
        prompt, what = render(sample), f"row {number}"
        texts.add(text, prompt.text, what)
        grids: tuple[tuple[int, int, int], ...] = ()
        seen: tuple[tuple[int, int], ...] = ()
        if (made := _processed(processor, text, asked, limits)) is not None:
            media = [family.prepare_media(medium) for medium in prompt.media]
            own = list(family.expand_placeholders(prompt.token_ids, media))
            ids.add(made.ids, own, what)
            sizes.add(made.grid, tuple(media[0].grid), what)
            same = made.patches.shape == media[0].patches.shape
            apart = float((made.patches - media[0].patches).abs().max()) if same else math.inf
            pixels.add(0.0, 0.0 if apart < 1e-5 else apart, what)
            if asked.image is not None:
                grids, seen = (made.grid,), (media[0].pixels,)
        replies = completions(theirs.answer(row), draw, REPLIES)
        if number < 400 // REPLIES:
            score = theirs.rewards(row, folder, replies, grids)
            expected += [
                {name: values[at] for name, values in score.items()} for at in range(REPLIES)
            ]
            items += [
                RewardItem(
                    reply, sample, prompt.text, group=number, grid_thw=grids,
                    media_sizes=seen, token_ids=range(len(reply)),
                )
                for reply in replies
            ]  # fmt: skip
    scored = _scored(config, expected[0], items, folder)
    for item, wanted, got in zip(items, expected, scored, strict=True):
        for name, value in wanted.items():
            found = got.components.get(name) if got.valid else got.error
            near = isinstance(found, float) and abs(found - value) < 1e-9
            rewards.add(value, value if near else found, f"{name} of {item.completion!r}")
    yield from (check for check in (texts, ids, sizes, pixels, rewards) if check.compared)


@dataclass(frozen=True, slots=True)
class _Processed:
    """A row after transformers' processor.

    Attributes:
        ids: Tokens of the prompt.
        grid: Of its picture or video, in patches.
        patches: Their pixels.
    """

    ids: list[int]
    grid: tuple[int, int, int]
    patches: torch.Tensor


def _processed(
    processor: Any, text: str, asked: Asked, limits: Mapping[str, int | None]
) -> _Processed | None:
    """The row as the original's processor makes it; None without a picture or video."""
    if asked.image is not None:
        pixels = limits if asked.pixels is None else asked.pixels
        size = {"size": {SIZES[k]: v for k, v in pixels.items()}} if pixels else {}
        made = processor(text=[text], images=[asked.image], return_tensors="pt", **size)
        grid, patches = made["image_grid_thw"], made["pixel_values"]
    elif asked.video is not None:  # of a size that the processor's limits leave as it is
        as_it_is = {"do_sample_frames": False, "do_resize": False}
        made = processor(text=[text], videos=[asked.video], return_tensors="pt", **as_it_is)
        grid, patches = made["video_grid_thw"], made["pixel_values_videos"]
    else:
        return None
    frames, height, width = map(int, grid[0].tolist())
    return _Processed(made["input_ids"][0].tolist(), (frames, height, width), patches)


def _scored(
    config: Config, names: Mapping[str, float], items: Sequence[RewardItem], folder: Path
) -> list[Reward]:
    """The rewards of the functions that the original has too; they may read the pictures."""
    assert config.rewards is not None
    functions = {
        name: function.changed(sandbox={"readable": [*function.readable, str(folder)]})
        if isinstance(function, PluginConfig)
        else function
        for name, function in config.rewards.functions.items()
        if name in names
    }
    score = CompositeReward(config.rewards.changed(functions=functions), {})
    try:
        return score.score(items)
    finally:
        score.close()


# --- Videos, bonuses and the loss -----------------------------------------------------------------


def _frames(theirs: Fork, config: Config) -> Check:
    check = Check("videos", "indices of frames, and their height and width, by its fetch_video")
    draw, video = random.Random(2), config.data.video
    budget = VideoBudget().of({k: v for k, v in video.model_dump().items() if v is not None})
    for _ in range(VIDEOS):
        frames, fps = draw.randint(8, 3000), draw.choice((5.0, 23.976, 25.0, 30.0, 60.0))
        width, height = draw.randint(56, 640), draw.randint(56, 640)
        taken, size = theirs.frames(frames, fps, width, height)
        sampled = frame_indices(frames, fps, budget, {})
        ours = shown_frames(sampled, budget)
        fitted = fit_frame(width, height, len(sampled), budget)
        what = f"{frames} frames at {fps}/s of {width} x {height}"
        check.add((taken, size), (ours, (fitted[1], fitted[0])), what)
    return check


def _bonuses(theirs: VideoR1, config: Config) -> Check:
    """The sum of a group's rewards, with and without shuffled frames."""
    check = Check("bonuses", "of time and length, added to accuracy and format, by its own lines")
    assert config.rewards is not None
    given = config.rewards.functions
    names = ("temporal_contrast", "length_bonus")
    functions: dict[str, Any] = {"accuracy": {"use": "count"}, "format": {"use": "format"}}
    functions |= {
        name: given[name].model_dump(exclude_none=True) for name in names if name in given
    }
    score = CompositeReward(RewardsConfig(functions=functions), {})
    draw = random.Random(3)
    right, wrong = "<think>a</think>\n<answer>3</answer>", "<think>a</think>\n<answer>4</answer>"
    try:
        for number in range(100):
            replies = [draw.choice((right, wrong)) for _ in range(8)]
            lengths = [draw.randint(300, 530) for _ in range(8)]
            shuffled = [draw.choice((right, wrong)) for _ in range(4)] if number % 3 else None
            items = [
                RewardItem(
                    reply, Sample("s", (), "3"), group=number, token_ids=range(length),
                    shuffled=None if shuffled is None else tuple(shuffled),
                )
                for reply, length in zip(replies, lengths, strict=True)
            ]  # fmt: skip
            own = torch.tensor([[float(r == right), 1.0] for r in replies])
            others = None if shuffled is None else torch.tensor(
                [[float(r == right), 1.0] for r in shuffled]
            )  # fmt: skip
            wanted = [round(v, 5) for v in theirs.bonuses(own, others, lengths)]
            got = [r.error if r.value is None else round(r.value, 5) for r in score.score(items)]
            check.add(wanted, got, f"group {number}, lengths {lengths}")
    finally:
        score.close()
    return check


class _Given:
    """A model of given log-probs."""

    def __init__(self, logprobs: torch.Tensor) -> None:
        self._logprobs = logprobs

    def logprobs(self, groups: Any) -> torch.Tensor:
        return self._logprobs


def _loss(theirs: Original, config: Config) -> Check:
    check = Check("loss", "value and gradient to 1e-4 of the largest, by its trainer's own lines")
    algorithm = config.algorithm
    loss, kl = algorithm.loss, algorithm.kl
    settings = {
        "beta": 0.0 if kl is None else kl.coef,
        "low": getattr(loss, "clip_ratio_low", 0.2),
        "high": getattr(loss, "clip_ratio_high", 0.2),
        "dual": getattr(loss, "clip_ratio_dual", None),
    }
    for seed in range(20):
        batch = _batch(seed, one_update=algorithm.ppo_mini_batch_size is None)
        wanted, got = theirs.loss(batch, settings), _our_loss(config, batch)
        pair = [(float(v.detach()), torch.autograd.grad(v, batch.new)[0]) for v in (wanted, got)]
        largest = float(pair[0][1].abs().max())
        apart = float((pair[0][1] - pair[1][1]).abs().max()) / max(largest, 1e-12)
        equal = largest > 0 and apart < 1e-4 and abs(pair[0][0] - pair[1][0]) < 1e-4
        check.add(pair[0][0], pair[0][0] if equal else pair[1][0], f"batch {seed}, {apart:.2g}")
    return check


def _batch(seed: int, one_update: bool) -> Batch:
    """Two groups of four; with one update per rollout the policy is the one that sampled."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (8,), generator=draw)
    mask = (torch.arange(8)[None] < lengths[:, None]).int()
    old = -torch.rand(8, 8, generator=draw, dtype=torch.float64)
    noise = torch.randn(8, 8, generator=draw, dtype=torch.float64)
    new = (old if one_update else old + noise / 3).clone().requires_grad_()
    ref = old + torch.randn(8, 8, generator=draw, dtype=torch.float64) / 2
    rewards = torch.randint(0, 5, (8,), generator=draw).double() / 4
    rewards[:4] += torch.tensor([0.0, 0.5, 0, 0])  # no group without a signal
    rewards[4:] += torch.tensor([0.0, 0, 0, 0.75])
    return Batch(new, old, ref, mask, rewards, 4)


def _our_loss(config: Config, batch: Batch) -> torch.Tensor:
    """The loss as the update computes it from the same numbers."""
    of = config.algorithm.changed(ppo_mini_batch_size=None)
    groups = []
    for start in range(0, len(batch.rewards), batch.n):
        rows = range(start, start + batch.n)
        replies = tuple(
            Completion(np.arange(n), np.zeros(n, np.float32), "", False, 0)
            for n in (int(batch.mask[row].sum()) for row in rows)
        )
        rollout = RolloutGroup(Prompt(Sample("s", ()), "", ()), replies)
        groups.append(ScoredGroup(rollout, tuple(Reward(float(batch.rewards[r])) for r in rows)))
    algorithm = build_algorithm(of)
    longest = int(batch.mask.sum(1).max())
    new, old, ref = (x[:, :longest] for x in (batch.new, batch.old, batch.ref))
    models = Models(_Given(old.detach()), _Given(ref) if of.kl is not None else None)  # type: ignore[arg-type]
    made = build_experience(groups, algorithm, models, max_tokens=longest)
    inputs = LossInputs(
        new, old, made.tokens.advantages.double(), torch.zeros_like(old), made.tokens.mask,
        made.tokens.ref_logprobs, made.coefficients.kl, made.coefficients.entropy, chosen=None,
    )  # fmt: skip
    total: torch.Tensor = (made.tokens.loss_weights * algorithm.loss(inputs)).sum()
    return total


# --- What is written ------------------------------------------------------------------------------


def _write(
    output: Path,
    recipe: str,
    processor: str,
    root: Path,
    commit: str | None,
    theirs: Original,
    checks: list[Check],
) -> None:
    output.mkdir(parents=True, exist_ok=True)
    facts = {
        "recipe": recipe,
        "mmr1": __version__,
        "original": root.name,
        "commit": commit,
        "processor": processor,
        "texts": _texts(theirs, root),
        "checks": [asdict(check) for check in checks],
        "bugs": [asdict(bug) for bug in theirs.bugs],
    }
    with atomic(output / "certificate.json") as file:
        file.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    with atomic(output / "certificate.md") as file:
        file.write(page(facts))


def _commit(root: Path, given: str | None) -> str | None:
    """The commit of a checkout by git; for a copy of its files the given one, marked as such.

    Raises:
        ValueError: Git knows another one.
    """
    command = ["git", "-C", str(root), "rev-parse", "--show-toplevel", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
    if Path(found[0]) != root.resolve():  # in no repository, or below that of another project
        return given and f"{given} (as given: a copy, which git does not know)"
    if given is not None and not found[1].startswith(given):
        raise ValueError(f"--commit {given}: git has {found[1]} checked out in {root}")
    return found[1]


def _texts(theirs: Original, root: Path) -> dict[str, dict[str, Any]]:
    """Length and SHA-256 of the texts of the prompt."""
    package = root / getattr(theirs, "package", "")
    found: dict[str, str] = {}
    for file, name in theirs.texts:
        if not file:
            found[name] = (root / name).read_text(encoding="utf-8")
            continue
        named, _, key = name.rstrip("]").partition("[")
        if key:
            found[f"{file}:{name}"] = function(package / file, named)(key)
            continue
        value = constant(package / file, named)
        texts = {name: value} if isinstance(value, str) else {
            f"{name}[{k}]": text for k, text in value.items()
        }  # fmt: skip
        found |= {f"{file}:{k}": text for k, text in texts.items()}
    return {
        name: {"characters": len(text), "sha256": sha256(text.encode()).hexdigest()}
        for name, text in found.items()
    }


def page(facts: Mapping[str, Any]) -> str:
    """The certificate as Markdown."""
    commit = facts["commit"] or "not known: no git checkout, and --commit was not given"
    lines = [
        f"# {facts['recipe']} beside {facts['original']}",
        "",
        f"Commit {commit}; mmr1 {facts['mmr1']}; processor of {facts['processor']}.",
        "",
        "| compared | how | number | equal |",
        "|---|---|---|---|",
    ]
    for check in facts["checks"]:
        lines.append(
            f"| {check['name']} | {check['note']} | {check['compared']} | {check['equal']} |"
        )
    for check in facts["checks"]:
        if check["differences"]:
            lines += ["", f"Not equal in {check['name']}, the first of them:", ""]
            lines += [f"- {' '.join(text.split())}" for text in check["differences"]]
    if facts["texts"]:
        lines += ["", "| text of the prompt | characters | SHA-256 |", "|---|---|---|"]
    for name, text in facts["texts"].items():
        lines.append(f"| `{name}` | {text['characters']} | {text['sha256']} |")
    if facts["bugs"]:
        lines += ["", "| known bug of the original | where | here |", "|---|---|---|"]
        lines += [f"| {bug['what']} | {bug['where']} | {bug['here']} |" for bug in facts["bugs"]]
    return "\n".join([*lines, ""])


def check_recipe(
    folder: Path,
    original: Path,
    model: str | None,
    output: Path | None,
    commit: str | None = None,
) -> Iterator[str]:
    """Write the certificate; yields lines about it.

    Raises:
        ValueError: The recipe in this folder has no exact configuration for RL, or the checkout is
            none of its original.
    """
    name = folder.name
    files = [*folder.glob("exact_rl.yaml"), *folder.glob("exact_grpo.yaml")]
    if not files:
        raise ValueError(f"recipe '{name}' has no exact_rl.yaml beside its own files")
    project_of(name, original)
    os.environ["ORIGINAL"] = str(original.resolve())
    family = _family_named(load_config(files[0]).model.path)
    called = model or f"a new {family} of 0.7M parameters"
    with tempfile.TemporaryDirectory() as small:
        if model is None:
            new_model(Path(small), family=family)
        config = load_config(files[0], [f"model.path={model or small}"])
        written = output or Path("runs") / name / "certificate"
        for check in certify(
            name, config, original.resolve(), written, commit=commit, processor=called
        ):
            yield f"{check.name}: {check.equal} of {check.compared} equal"
    yield f"written: {written / 'certificate.md'} and certificate.json"


def _family_named(model: str) -> str:
    """The family in a model's name, such as ``Qwen/Qwen2-VL-2B-Instruct``; else the default."""
    name = re.sub(r"\W", "_", model).lower()
    return next((family for family in FAMILIES.names() if family in name), DEFAULT_FAMILY)
