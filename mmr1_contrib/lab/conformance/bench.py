"""An engine under test, and transformers beside it on a road of its own.

The reference is the audit's: prompts by the chat template and the processor of transformers, a
forward pass for each completion. Nothing of an engine or of the trainer is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np
import torch
from PIL import Image

from mmr1.config import Config, SamplingConfig
from mmr1.config.file import config_from, redacted
from mmr1.data.rendering import renderer
from mmr1.rollout.build import build_engine
from mmr1.rollout.protocol import Engine, Request, complete
from mmr1.rollout.two_turns import picture
from mmr1.trainer.models.loading import load_here
from mmr1.trainer.models.weights import model_adapters, model_weights
from mmr1.trainer.runs.step_file import messages_of
from mmr1.types import Completion, MediaRef, Message, Prompt, Sample, TextPart
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.family import ModelFamily
from mmr1_contrib.lab.audit.forward import Model, Scores
from mmr1_contrib.lab.audit.prompts import ReadPrompt, read_prompt
from mmr1_contrib.lab.audit.recipe import Recipe

TOKENS = 16
"""Tokens of a completion, at most."""
SHAKE = 0.01
"""Deviation of the noise that stands for an update of the weights."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A prompt as the engine is given it, and as transformers reads it."""

    prompt: Prompt
    read: ReadPrompt


@dataclass
class Bench:
    """The engine under test.

    Attributes:
        config: Configuration that the engine was built from.
        family: Processor and tokens of the model.
        model: The model whose weights the engine has.
        reference: The same model, loaded once more.
        prompts: Prompts by kind; those that the model takes.
        render: Makes a prompt of a sample.
        load: Gives the engine weights and their version.
        version: Version of the weights that the engine has.
    """

    engine: Engine
    config: Config
    family: ModelFamily
    model: Any
    reference: Model
    prompts: Mapping[str, Shown]
    render: Callable[[Sample], Shown]
    load: Callable[[Mapping[str, torch.Tensor], int], None]
    version: int = 0

    def sampled(
        self, shown: Shown, seeds: Sequence[int] = (1, 2), **changes: Any
    ) -> tuple[Completion, ...]:
        """Let the engine complete a prompt; ``changes`` are of the sampling."""
        limits = {"max_tokens": TOKENS, "temperature": 0.8}
        sampling = SamplingConfig(**limits | changes)
        return complete(self.engine, [Request(shown.prompt, tuple(seeds), sampling)])[0].completions

    @torch.no_grad()
    def scores(self, shown: Shown, completion: Completion, temperature: float = 0.8) -> Scores:
        """Score the tokens of a completion by the reference, over the ids that the engine kept."""
        ids = torch.from_numpy(completion.token_ids)
        forbidden, kept = self.family.forbidden_ids, None
        if completion.support is not None:
            sizes = completion.support.sizes.tolist()
            kept = torch.split(torch.from_numpy(completion.support.ids).long(), sizes)
        return self.reference.score(shown.read, ids, forbidden, kept, temperature=temperature)

    def gap(self, shown: Shown, completions: Sequence[Completion], temperature: float = 0.8) -> Any:
        """Return the log-prob gap to the reference, in nats; see :meth:`largest`."""
        pairs = [
            (torch.from_numpy(c.logprobs), self.scores(shown, c, temperature).logp.float())
            for c in completions
        ]
        return self.largest(torch.cat([(own - other).abs() for own, other in pairs]))

    def largest(self, gaps: torch.Tensor) -> float:
        """Return what ``rollout.parity_tolerance`` bounds: the largest gap, or their mean.

        The mean holds where one side computes in half precision.
        """
        return float(gaps.mean() if self.config.rounds_logprobs else gaps.max())

    @property
    def tolerance(self) -> float:
        """Largest gap allowed, in nats."""
        return self.config.parity_tolerance

    @torch.no_grad()
    def shake(self) -> None:
        """Add noise to every weight that is trained, as an update does; nothing is loaded."""
        generator = torch.Generator().manual_seed(self.version)
        for parameter in filter(lambda p: p.requires_grad, self.model.parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter += SHAKE * noise.to(parameter)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of the weights as the engine takes them."""
        adapters = self.config.model.sync_adapters_only
        own = model_adapters(self.model) if adapters else model_weights(self.model)
        return {name: weight.detach().clone() for name, weight in own.items()}

    def load_shaken(self) -> None:
        """Give engine and reference the present weights."""
        self.version += 1
        self.load(self.weights(), self.version)
        self.reference.module.load_state_dict(dict(model_weights(self.model)), strict=False)


def parity_config(model: str, overrides: Sequence[str]) -> Config:
    """Resolve the configuration that an engine is built from.

    Raises:
        ValueError: If an override does not fit, or asks for several processes.
    """
    values = {
        "model": {"path": model},
        "rollout": {"max_prompt_length": 1024, "max_response_length": 4 * TOKENS},
        "rewards": {"format": 1.0},
    }
    config = config_from(values, overrides)
    if config.distributed:
        raise ValueError("mmr1 parity checks an engine in one process; leave resources out")
    return config


@contextmanager
def opened_bench(config: Config) -> Iterator[Bench]:
    """Build the engine of a configuration, with the weights of ``model.path``, and a reference.

    Raises:
        ValueError: If the engine cannot be built so.
    """
    with TemporaryDirectory() as temporary:
        family, folder = family_of(config), Path(temporary)
        media = media_cache(family, config)
        model = load_here(config.model, True, "model.path")
        engine = build_engine(config, family, media, folder / "engine.log", model)
        with closing(engine):
            bench = bench_of(engine, config, family, model, folder, engine.load)
            bench.load(bench.weights(), 0)
            yield bench


def bench_of(
    engine: Engine,
    config: Config,
    family: ModelFamily,
    model: Any,
    folder: Path,
    load: Callable[[Any, int], None],
) -> Bench:
    """Put a reference and prompts beside an engine; their media are written into the folder."""
    recipe = Recipe(redacted(config), {})
    reference = Model(config.model.path, getattr(torch, config.model.dtype), recipe)
    reference.module.to(next(model.parameters()).device)
    render = renderer(family, config)

    def shown(sample: Sample) -> Shown:
        messages = messages_of(sample, folder)
        tps = reference.tokens_per_second
        return Shown(render(sample), read_prompt(reference.processor, messages, recipe, tps))

    prompts = {}
    for kind, sample in samples(folder):
        try:
            family.prompt_length(render(sample))
        except ValueError:  # the model takes no such media
            continue
        prompts[kind] = shown(sample)
    return Bench(engine, config, family, model, reference, prompts, shown, load)


def samples(folder: Path) -> Iterator[tuple[str, Sample]]:
    """Yield a question about drawn media for each kind of prompt."""
    first, second = (_picture_file(folder / f"{shift}.png", shift) for shift in (0, 40))
    frames = [np.asarray(Image.open(BytesIO(picture(20 * n).read()))) for n in range(8)]
    contents: dict[str, tuple[MediaRef, ...]] = {
        "text": (),
        "a picture": (first,),
        "two pictures": (first, second),
        "two pictures, exchanged": (second, first),
        "a video": (_video_file(folder / "video.mp4", frames, 2),),
        "a video, reversed": (_video_file(folder / "reversed.mp4", frames[::-1], 2),),
        "a video, faster": (_video_file(folder / "faster.mp4", frames, 8),),
    }
    question = TextPart("Name the colours, one after another.")
    for kind, media in contents.items():
        yield kind, Sample(kind, (Message("user", (*media, question)),), "red")
    turns = (
        Message("user", (first, question)),
        Message("assistant", (TextPart("Blue, then red."),)),
        Message("user", (second, TextPart("And here?"))),
    )
    yield "turns", Sample("turns", turns, "red")


def _picture_file(path: Path, shift: int) -> MediaRef:
    path.write_bytes(picture(shift).read())
    return replace(picture(shift), data=None, path=path)


def _video_file(path: Path, frames: Sequence[np.ndarray], rate: int) -> MediaRef:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return MediaRef("video", path, options={"nframes": 4})
