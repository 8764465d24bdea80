"""Each family on two ranks, without Ray, against one process: log-probs and every gradient."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image

from mmr1.config import ModelConfig
from mmr1.rollout.distribution import Distribution, support_of
from mmr1.routers import watch_routers
from mmr1.trainer.distributed import fsdp
from mmr1.trainer.forward.micro_batches import ProcessGroup, SingleProcess
from mmr1.trainer.forward.routing import RouterUse
from mmr1.trainer.forward.sequences import GroupInput, ModelInputs, TokenScores
from mmr1.trainer.models.loading import LoadModel, load_here
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.weights import whole
from mmr1.types import Completion, MediaRef, Message, RolloutGroup, Sample, Support, TextPart
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.families.loading import load_family, unwrapped
from mmr1.vision.prepare import MediaCache
from tests.trainer.distributed.gloo import on_two_ranks
from tests.vision.families.general_models import MODELS, SEES_VIDEOS, new_model
from tests.vision.families.tiny_family import TEXT
from tests.vision.media import encoded, noise, write_video

SETTINGS: dict[str, dict[str, Any]] = {
    "kept": {},
    "whole": {},
    "checkpointed": {"gradient_checkpointing": True},
    "frozen tower": {"freeze_vision_tower": True},
    "adapters": {"lora": {"rank": 4, "target_modules": "all-linear"}},
    "replayed": {"gradient_checkpointing": True},  # with the engine's experts
}
NAMES = ("qwen3", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", *MODELS)
CASES = [
    *((name, "whole") for name in NAMES),
    *(("qwen3_vl", of) for of in ("frozen tower", "adapters")),
    *(("llava_onevision", of) for of in ("checkpointed", "frozen tower", "adapters")),
    ("qwen3_vl_moe", "replayed"),
    ("qwen3_vl", "kept"),
]


def groups_of(name: str, family: ModelFamily, clip: Path) -> list[RolloutGroup]:
    """The first rank has the first half: text alone, and more of it than the other has groups."""
    picture, other = (
        MediaRef("image", data=encoded(Image.fromarray(noise(*size))))
        for size in ((90, 50), (64, 64))
    )
    video = MediaRef("video", clip, options={"fps": 2.0})
    media: list[tuple[MediaRef, ...]] = [(), (), (), (picture, other), (video,)]
    if name in MODELS and name not in SEES_VIDEOS:
        media[-1] = (other,)
    rng = np.random.default_rng(0)
    return [
        RolloutGroup(
            family.render_prompt(
                Sample(
                    f"{i}",
                    (Message("user", (*(() if name in TEXT else refs), TextPart(f"Digit {i}?"))),),
                )
            ),
            tuple(
                Completion(rng.integers(60, 500, n), np.zeros(n, np.float32), "", False, 0)
                for n in (3, 7, 2 + i)
            ),
        )
        for i, refs in enumerate(media)
    ]


def learnt(
    name: str,
    of: str,
    folder: Path,
    load: LoadModel,
    process_group: ProcessGroup,
) -> dict[str, Any]:
    """Log-probs of the own groups, and the gradient that all ranks' groups make together."""
    torch.manual_seed(0)  # adapters begin at random
    config = ModelConfig(path=str(folder / name), dtype="float32", **SETTINGS[of])
    model = load(config, True, "model.path")
    family = load_family(config.path)
    inputs = ModelInputs(family, MediaCache(family.prepare_media))
    packed = PackedModel(
        model,
        inputs,
        Distribution(0.7, forbidden=inputs.family.forbidden_ids),
        150,
        process_group=process_group,
    )
    every = groups_of(name, family, folder / "clip.mp4")
    if of == "replayed":
        layers = watch_routers(unwrapped(model), "test").layers
        every = [routed(g, i, layers) for g, i in zip(every, inputs.of(every), strict=True)]
        packed = replace(packed, routers=RouterUse(compares=True, replays=True))
    if of == "kept":
        every = [kept(g, i) for i, g in enumerate(every)]
        packed = replace(packed, distribution=replace(packed.distribution, top_k=9))
    own = every if process_group.size == 1 else (every[:3], every[3:])[process_group.rank]
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if ".lora_" in parameter_name:  # in each process at random, and zero
                parameter.fill_(0.02)
    model.train()
    for batch in packed.batches(own):
        packed.backward(weighted(packed.token_scores(batch)))
    gradients = {
        n: whole(p.grad).clone() for n, p in model.named_parameters() if p.grad is not None
    }
    return {"gradients": gradients, "logprobs": packed.logprobs(own)}


def routed(group: RolloutGroup, inputs: GroupInput, layers: int) -> RolloutGroup:
    """The group, as if an engine had chosen two of four experts at random."""
    rng = np.random.default_rng(len(inputs.prompt_ids))

    def chosen(tokens: int) -> np.ndarray:
        return rng.random((tokens, layers, 4)).argsort(-1)[..., :2].astype(np.uint8)

    prompt = chosen(len(inputs.prompt_ids))
    rows = [
        replace(c, routed_experts=(prompt, chosen(len(c.token_ids) - 1))) for c in group.completions
    ]
    return replace(group, completions=tuple(rows))


def kept(group: RolloutGroup, seed: int) -> RolloutGroup:
    """The group, as if an engine had kept a few random ids for each token."""
    rng = np.random.default_rng(seed)

    def support(tokens: np.ndarray) -> Support:
        rows = [np.unique([token, *rng.integers(0, 200, rng.integers(0, 9))]) for token in tokens]
        return support_of([row.astype(np.int32) for row in rows])

    rows = [replace(c, support=support(c.token_ids)) for c in group.completions]
    return replace(group, completions=tuple(rows))


def weighted(scores: TokenScores) -> torch.Tensor:
    """A sum over the batch, in which each place of a completion has weights of its own."""
    places = torch.arange(scores.logprobs.shape[1])
    return (scores.logprobs * places.cos() + scores.entropy * places.sin()).sum()


def _learn(rank: int, mesh: Any, folder: Path) -> None:
    group = fsdp.DistributedProcessGroup(rank, 2)
    for name, of in CASES:
        found = learnt(name, of, folder, partial(fsdp.load, mesh=mesh), group)
        torch.save(found, folder / f"{name} {of} {rank}.pt")
        dist.barrier()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    for name in {name for name, _ in CASES}:
        new_model(name, folder / name)
    write_video(folder / "clip.mp4", frames=20, width=96, height=64, fps=10)
    on_two_ranks(_learn, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("name", "of"), CASES)
def test_two_ranks_compute_what_one_process_computes(name, of, folder):
    """One rank has text alone, and more micro-batches than the other, which has pictures."""
    alone = learnt(name, of, folder, load_here, SingleProcess())
    ranks = [torch.load(folder / f"{name} {of} {rank}.pt") for rank in (0, 1)]
    rows = alone["logprobs"].split([len(r["logprobs"]) for r in ranks])
    for ours, theirs in zip([r["logprobs"] for r in ranks], rows, strict=True):
        torch.testing.assert_close(ours, theirs[:, : ours.shape[1]], atol=1e-5, rtol=0)
    for gradients in (r["gradients"] for r in ranks):
        assert gradients.keys() >= alone["gradients"].keys()
        for parameter, ours in gradients.items():
            theirs = alone["gradients"].get(parameter, torch.zeros(()))
            error = (ours - theirs).abs().max()
            assert error <= 1e-5 * max(1.0, theirs.abs().max()), parameter
    assert any(g.norm() > 0.1 for g in alone["gradients"].values())
