"""Sequences that are cut over two and four ranks, without Ray, against one process."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from mmr1.config import Config
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.distributed import fsdp
from mmr1.trainer.distributed.fsdp import DistributedProcessGroup
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.context_packing import Cut, cut_layout
from mmr1.trainer.forward.packing import packed_attention
from mmr1.trainer.forward.scores import completion_distributions, completion_scores
from mmr1.trainer.forward.sequences import GroupInput
from mmr1.trainer.models.training_models import build_training_models
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.features import FeatureCache
from tests.attention.layouts import CPU, EXACT, SCALE, rows, shared_layout
from tests.trainer.distributed.context_scores import gradients_of, log_probs
from tests.trainer.distributed.gloo import on_ranks
from tests.trainer.distributed.models_on_ranks import config_of
from tests.trainer.distributed.models_on_ranks import learnt as models_learnt
from tests.trainer.forward.packed_groups import (
    GROUPS,
    assert_gradients,
    one_image,
    weighted_sum,
)
from tests.trainer.models.reference_server import serving
from tests.trainer.tiny_groups import group, image, new_model, video
from tests.vision.families.tiny_family import FAMILIES

RANKS = 4
SERVED = "reference behind a server"
# Ranks of a context, and ranks that share a copy of the model.
UPDATES = {
    "critic": (2, 4),
    "demonstrations": (2, 4),
    "KL to adapters off": (4, 2),
    "conversations": (2, 2),
    SERVED: (2, 4),
}
ASKED: list[tuple[int, ...]] = []
LAYOUTS = [
    [(9, [3, 5, 1])],
    [(4, []), (17, [2, 30]), (8, [6])],
    [(97, [])],
    [(1, [])],  # fewer tokens than chunks
    [(3, [1, 1, 40]), (1, [0, 2])],
]


def of_family(name: str) -> list[GroupInput]:
    family = FAMILIES[name]
    media = [family.image(84, 56), family.video(6, 56, 84)] if family.sees else []
    return [family.group(media, 9, [5, 8, 3], 0)]


CASES: dict[str, Any] = {
    **GROUPS,
    "a long video": lambda: [group([video(14, 56, 84, 4)], 7, [9, 30], 6)],
    "a token": lambda: [group([], 1, [1], 7)],
    "frozen tower": lambda: [group([one_image(), video(4, 56, 56, 1)], 6, [4, 9], 2)],
    "checkpointing": lambda: [group([one_image()], 11, [5, 9], 1), group([], 20, [3, 3], 1)],
    "lora": lambda: [group([video(4, 56, 84, 1), image(84, 84, 3)], 12, [9, 2], 5)],
    "KL over the vocabulary": lambda: [group([one_image()], 11, [5, 9], 1)],
    **{name: partial(of_family, name) for name in ("qwen2", "qwen3_vl", "qwen3_vl_moe")},
}


def attended(groups: list[tuple[int, list[int]]], context: Context | None) -> list[torch.Tensor]:
    """Output of attention and its gradients, of all tokens."""
    layout, allowed = shared_layout(groups)
    total = len(allowed)
    cut = Cut(total, 1 if context is None else context.size)
    own = torch.arange(total) if context is None else cut.tokens_of(context.rank)
    padding = 0 if context is None else cut.padded - total
    sides = [rows(total, heads, seed) for heads, seed in ((4, 0), (2, 1), (2, 2))]
    wide = [torch.nn.functional.pad(side, (0, 0, 0, 0, 0, padding))[own] for side in sides]
    kind = layout if context is None else cut_layout(layout, cut, context, CPU)
    heads_first = [side.transpose(0, 1)[None] for side in wide]
    out, _ = packed_attention(torch.nn.Identity(), *heads_first, None, scaling=SCALE, layout=kind)
    grad = torch.nn.functional.pad(rows(total, 4, 3).detach(), (0, 0, 0, 0, 0, padding))[own]
    grads = torch.autograd.grad(out[0], sides, grad)
    placed = torch.zeros(total + padding, *out.shape[2:], dtype=out.dtype)
    placed[own] = out[0].detach()
    found = [placed[:total], *grads]
    if context is not None:
        for tensor in found:
            dist.all_reduce(tensor, group=context.group)
    return found


def inputs_of(case: str) -> tuple[Any, list[GroupInput]]:
    """A tiny model and groups for it."""
    model = FAMILIES[case].model() if case in FAMILIES else new_model()
    return model, CASES[case]()


def model_of(case: str, tiny: Any) -> Any:
    model = copy.deepcopy(tiny)
    if case == "frozen tower":
        model.model.visual.requires_grad_(False)
    if case == "lora":
        torch.manual_seed(0)
        config = peft.LoraConfig(
            r=4, target_modules="all-linear", init_lora_weights=False, lora_alpha=1
        )
        model = peft.get_peft_model(model, config)
    if case == "checkpointing":
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def learnt(
    case: str, tiny: Any, groups: list[GroupInput], context: Context | None
) -> dict[str, Any]:
    """Scores of a forward, and the gradient of every parameter."""
    model = model_of(case, tiny)
    options: dict[str, Any] = {"context": context}
    if case == "frozen tower":
        options["features"] = FeatureCache()
    if case.startswith("KL"):
        reference = copy.deepcopy(tiny)
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.mul_(0.9)
        options["reference"] = completion_distributions(reference, groups, context=context)
    scores = completion_scores(model, groups, Distribution(0.7, forbidden=(3, 5)), **options)
    loss = weighted_sum(scores)
    if scores.kl is not None:
        loss = loss + scores.kl.square().sum()
    loss.backward()
    scored = [s.detach() for s in scores if s is not None]
    return {"scores": scored, "gradients": gradients_of(model, context)}


def config_with_server(case: str, tiny_model: Path, out: Path, url: str) -> Config:
    if case != SERVED:
        return config_of(case, tiny_model, out)
    config = config_of("conversations", tiny_model, out)
    return config.changed({"algorithm.kl.reference": {"type": "server", "url": url}})


def _work(rank: int, mesh: Any, tiny_model: Path, mixed: Path, out: Path, url: str) -> None:
    cases = torch.load(out / "cases.pt", weights_only=False)
    for size in (2, 4):
        context = DistributedProcessGroup(rank, RANKS, size).context
        assert context is not None
        found: dict[str, Any] = {}
        for case, (model, groups) in cases.items():
            found[case] = learnt(case, model, groups, context)
        found["attention"] = [attended(groups, context) for groups in LAYOUTS]
        if rank in (0, RANKS - 1):  # of the first group and of the last
            torch.save(found, out / f"{size} {rank}.pt")
    copies = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))
    for case, (size, shard) in UPDATES.items():
        config = config_with_server(case, tiny_model, out, url)
        family = family_of(config)
        torch.manual_seed(0)
        models = build_training_models(
            config,
            family,
            media_cache(family, config),
            DistributedProcessGroup(rank, RANKS, size),
            partial(fsdp.load, mesh=mesh if shard == RANKS else copies),
        )
        updated = models_learnt(case, config, models, mixed, RANKS // size, rank // size)
        if rank == RANKS - 1:
            torch.save(updated, out / f"{case}.pt")


@pytest.fixture(scope="module")
def url(tiny_model) -> Iterator[str]:
    family = family_of(Config(model={"path": str(tiny_model)}))
    placeholder = next(i for i, kind in family.placeholder_kinds.items() if kind == "image")

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        ASKED.append(tuple(body["token_ids"]))
        return log_probs(body, placeholder)

    with serving(answer) as address:
        yield address


@pytest.fixture(scope="module")
def folder(tiny_model, mixed, url, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("context")
    torch.save({case: inputs_of(case) for case in CASES}, out / "cases.pt")
    on_ranks(RANKS, _work, tiny_model, mixed, out, url)
    (out / "asked.json").write_text(json.dumps(sorted(ASKED)))
    return out


@pytest.mark.slow
def test_one_rank_of_a_context_asks_a_served_reference(folder):
    """Each of the two contexts, in each of two updates, about every completion."""
    asked = Counter(map(tuple, json.loads((folder / "asked.json").read_text())))
    assert len(asked) == 6
    assert set(asked.values()) == {2 * 2}


@pytest.fixture(scope="module")
def found(folder) -> Any:
    return cache(lambda size, rank: torch.load(folder / f"{size} {rank}.pt"))


@cache
def alone(case: str) -> dict[str, Any]:
    return learnt(case, *inputs_of(case), None)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, RANKS - 1])
@pytest.mark.parametrize("size", [2, 4])
def test_attention_equals_that_of_one_process(found, size, rank):
    for groups, got in zip(LAYOUTS, found(size, rank)["attention"], strict=True):
        for ours, theirs in zip(got, attended(groups, None), strict=True):
            torch.testing.assert_close(ours, theirs, **EXACT)


class Operations(TorchDispatchMode):
    """Names of what is computed and sent, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def test_keys_travel_while_a_rank_attends_to_its_own():
    """In a context whose other rank does not exist."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        layout, allowed = shared_layout(LAYOUTS[0])
        context = Context(0, 2, dist.group.WORLD)
        own = cut_layout(layout, cut := Cut(len(allowed), 2), context, CPU)
        query, key, value = (rows(2 * cut.chunk, heads, 0) for heads in (4, 2, 2))
        with Operations() as forward:
            out = own.attention(query, key, value, SCALE)
        with Operations() as backward:
            out.sum().backward()
    finally:
        dist.destroy_process_group()
    for names in (forward.names, backward.names):
        sent = [i for i, name in enumerate(names) if name.startswith("c10d._allgather")]
        attended = [i for i, name in enumerate(names) if "attention" in name]
        assert len(sent) == 1
        assert sent[0] < attended[0]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_scores_and_gradients_equal_those_of_one_process(found, case, size):
    for rank in (0, RANKS - 1):
        got, wanted = found(size, rank)[case], alone(case)
        for ours, theirs in zip(got["scores"], wanted["scores"], strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        given = {name: g for name, g in wanted["gradients"].items() if g.any()}
        assert given.keys() <= got["gradients"].keys()
        nothing = [g for name, g in got["gradients"].items() if name not in given]
        assert not any(g.any() for g in nothing)
        assert_gradients({name: got["gradients"][name] for name in given}, given)


@pytest.mark.slow
@pytest.mark.parametrize("case", UPDATES)
def test_ranks_that_share_sequences_learn_what_one_process_learns(
    case, folder, tiny_model, mixed, url, tmp_path
):
    """With sharded weights; each context has its part of the groups."""
    config = config_with_server(case, tiny_model, tmp_path, url)
    family = family_of(config)
    torch.manual_seed(0)
    models = build_training_models(config, family, media_cache(family, config))
    wanted, got = models_learnt(case, config, models, mixed), torch.load(folder / f"{case}.pt")
    for ours, theirs in zip(got["stats"], wanted["stats"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-5)
    pairs = zip(got["weights"], wanted["weights"], strict=True)
    apart = torch.cat([(ours - theirs).abs().flatten() for ours, theirs in pairs])
    assert (apart > 1e-5).float().mean() < 1e-3  # where a gradient is only rounding
