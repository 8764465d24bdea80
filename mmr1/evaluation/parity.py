"""``mmr1 parity``: do rollout engine and trainer read and score prompts alike?

A prompt of each kind is compared by the check that every run begins with: with the weights that
both load, after an update that the engine has not got yet, and after it has got them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from mmr1.config import Config
from mmr1.data.rendering import renderer
from mmr1.progress import report_activity
from mmr1.rollout.build import build_engine
from mmr1.rollout.engines import abilities
from mmr1.rollout.protocol import complete, requests_for
from mmr1.rollout.two_turns import picture
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.models.training_models import build_training_models
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.sampling.parity import ParityError, check_parity
from mmr1.types import (
    MediaRef,
    Message,
    Prompt,
    Reward,
    RolloutGroup,
    Sample,
    ScoredGroup,
    TextPart,
)
from mmr1.vision.build import family_of, media_cache


@dataclass(frozen=True, slots=True)
class KindParity:
    """Log-prob gaps between engine and trainer on the prompts of a kind, in nats.

    A gap is that of single tokens, or of the mean over the tokens where one side computes in half
    precision: what ``rollout.parity_tolerance`` bounds.

    Attributes:
        kind: Kind of media in the prompt.
        tokens: Number of tokens of the prompt, placeholders expanded.
        loaded: The gap with the weights that both loaded.
        stale: The gap when only the trainer has made an update.
        synced: The gap when the engine has got the new weights.
        refused: Why the model does not take the prompt.
        differs: How the two read it differently.
    """

    kind: str
    tokens: int = 0
    loaded: float = math.nan
    stale: float = math.nan
    synced: float = math.nan
    refused: str | None = None
    differs: str | None = None

    def agrees(self, tolerance: float) -> bool:
        """True if the gaps with equal weights are within tolerance, or the prompt is not taken."""
        return bool(self.refused) or (self.loaded <= tolerance and self.synced <= tolerance)


def measure_parity(config: Config) -> list[KindParity]:
    """Compare engine and trainer on a prompt of each kind, before and after an update.

    Args:
        config: Of ``mmr1 train``: models, engine, sampling and update are a run's.

    Raises:
        ValueError: The model or the engine cannot be used so.
    """
    if config.distributed:
        raise ValueError("mmr1 parity compares in one process; leave resources out")
    with TemporaryDirectory() as folder, report_activity("comparing trainer and engine"):
        return _measured(config, Path(folder))


def _measured(config: Config, folder: Path) -> list[KindParity]:
    family = family_of(config)
    media, render = media_cache(family, config), renderer(family, config)
    rows: dict[str, KindParity] = {}
    prompts: dict[str, Prompt] = {}
    for kind, sample in samples(folder):
        try:
            prompt = render(sample)
            rows[kind] = KindParity(kind, family.prompt_length(prompt))
            prompts[kind] = prompt
        except ValueError as error:
            rows[kind] = KindParity(kind, refused=str(error))
    models = build_training_models(config, family, media)
    policy, sampling = models.policy, config.rollout.sampling
    log = folder / "engine.log"
    engine = build_engine(config, family, media, log, models.model, models.features)

    def measure(moment: Literal["loaded", "stale", "synced"]) -> None:
        for kind, prompt in list(prompts.items()):
            try:
                parity = check_parity(engine, policy, family, media, [prompt], sampling, math.inf)
            except ParityError as error:
                rows[kind] = replace(rows[kind], differs=str(error))
                del prompts[kind]
            else:
                gap = parity.mean_gap if config.rounds_logprobs else parity.max_gap
                changed: dict[str, Any] = {moment: gap}
                rows[kind] = replace(rows[kind], **changed)

    with closing(engine):
        engine.load(policy.weights(copy=True), policy.version)
        measure("loaded")
        if not prompts:  # nothing is read alike
            return list(rows.values())
        requests = requests_for(list(prompts.values()), 4, sampling, config.seed, 1)
        groups = complete(engine, requests)
        algorithm = build_algorithm(config.algorithm, config.rollout.max_response_length)
        policy.update(build_experience(_rewarded(groups), algorithm, Models(policy, None)))
        if "shared" not in abilities(config).channels:
            measure("stale")
        engine.load(policy.weights(copy=True), policy.version)
        measure("synced")
    return list(rows.values())


def _rewarded(groups: Sequence[RolloutGroup]) -> list[ScoredGroup]:
    """The groups with rewards of 1 and 0 in turn: an update needs no more."""
    turns = [tuple(Reward(float(i % 2)) for i in range(len(g.completions))) for g in groups]
    return list(map(ScoredGroup, groups, turns))


def samples(folder: Path) -> Iterator[tuple[str, Sample]]:
    """A question about drawn pictures for each kind of prompt; the video lies in the folder."""
    first, second = picture(), picture(40)
    video = MediaRef("video", _video(folder))
    contents: dict[str, tuple[MediaRef, ...]] = {
        "text": (),
        "a picture": (first,),
        "two pictures": (first, second),
        "a video": (video,),
    }
    question = TextPart("Name the colours, one after another.")
    for kind, shown in contents.items():
        yield kind, Sample(kind, (Message("user", (*shown, question)),), "red")
    turns = (
        Message("user", (first, question)),
        Message("assistant", (TextPart("Blue, then red."),)),
        Message("user", (second, TextPart("And here?"))),
    )
    yield "turns", Sample("turns", turns, "red")


def _video(folder: Path) -> Path:
    """Eight frames, two a second."""
    frames = []
    for number in range(8):
        frame, name = picture(20 * number).read(), f"{number}.png"
        (folder / name).write_bytes(frame)
        frames.append({"path": name, "sha256": hashlib.sha256(frame).hexdigest()})
    path = folder / "video.frames.json"
    path.write_text(json.dumps({"fps": 2, "frames": frames}))
    return path


def print_parity(config: Config, rows: Sequence[KindParity]) -> None:
    """Print the gaps by kind of prompt, and which are too large."""
    tolerance = config.parity_tolerance
    table = Table("prompt", "tokens", "loaded", "update not sent", "sent", "")
    for row in rows:
        gaps = [
            "" if math.isnan(gap) else f"{gap:.1e}" for gap in (row.loaded, row.stale, row.synced)
        ]
        table.add_row(row.kind, str(row.tokens or ""), *gaps, _verdict(row, tolerance))
    measure = "mean" if config.rounds_logprobs else "largest"
    console = Console()
    console.print(table)
    console.print(
        f"The {measure} log-prob gap of a prompt's tokens, in nats; {tolerance:g} is allowed "
        "(rollout.parity_tolerance)."
    )
    for row in rows:
        if reason := row.refused or row.differs:
            console.print(f"{row.kind}: {reason}", markup=False)
    seen = [row.stale for row in rows if not math.isnan(row.stale)]
    if seen and max(seen) <= tolerance:
        console.print(
            "The update is too small to be seen, so the transfer is untested; raise optimizer.lr."
        )


def _verdict(row: KindParity, tolerance: float) -> str:
    if row.refused:
        return "not taken"
    return "agree" if row.agrees(tolerance) else "DIFFER"
