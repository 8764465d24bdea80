"""Sequences of models without a family, cut over two and four ranks, against one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from mmr1.config import Config
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.distributed import fsdp
from mmr1.trainer.distributed.fsdp import DistributedProcessGroup
from mmr1.trainer.forward.any_model.forward import (
    Verdict,
    admit,
    check_context,
    pack_text,
    verdict_of,
)
from mmr1.trainer.forward.any_model.layout import PrefixSharingError
from mmr1.trainer.forward.any_model.part import Part
from mmr1.trainer.forward.any_model.sharing import probe
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import GroupInput, ModelInputs, group_input
from mmr1.trainer.models.loading import build_packed_model
from mmr1.trainer.models.training_models import build_training_models
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.loading import UNCHANGED, architecture_named, unwrapped
from mmr1.vision.prepare import MediaCache
from tests.trainer.distributed.context_scores import gradients_of
from tests.trainer.distributed.gloo import on_ranks
from tests.trainer.distributed.models_on_ranks import config_of
from tests.trainer.distributed.models_on_ranks import learnt as models_learnt
from tests.trainer.forward.any_models import GROUPS, group, of_type, small
from tests.trainer.forward.packed_groups import assert_gradients, weighted_sum
from tests.vision.families.conversations import groups_of as conversations
from tests.vision.families.general_family import IMAGE, SQUARE, General

CPU = torch.device("cpu")
OF_FAMILIES = ("qwen2_5_vl", "qwen3_vl")
NAMES = ("llava", "glm4v", "llava_onevision", *OF_FAMILIES)
MADE = {name: General(name) for name in NAMES}
Inputs = tuple[Any, list[GroupInput]]


def of_text(name: str, groups: list[GroupInput] = GROUPS) -> Inputs:
    model = small(name)
    admit(model, probe(*of_type(name)))
    return model, groups


def with_pictures(name: str) -> Inputs:
    general = MADE[name]
    groups = [general.group((IMAGE,), 1), general.group((SQUARE, IMAGE), 3)]
    return general.model(packed=True), general.inputs(groups)


def with_pictures_of_tools(name: str) -> Inputs:
    general = MADE[name]
    return general.model(packed=True), general.inputs(conversations(general)[1:])


def of_a_family(name: str) -> Inputs:
    """By the way of any model."""
    own, general = MADE[name], architecture_named("general_vl")
    model = own.model()
    family = general.load_family(str(own.folder), model.config, UNCHANGED, False)
    groups = [own.group((IMAGE,), 1), own.group((SQUARE, IMAGE), 3), own.group((), 0)]
    inputs = [group_input(family, MediaCache(family.prepare_media), group) for group in groups]
    model.config.model_type = "any"
    admit(model, Verdict("packed"))
    return model, inputs


CASES: Mapping[str, Callable[[], Inputs]] = {
    "mixtral": partial(of_text, "mixtral"),
    "llava": partial(with_pictures, "llava"),
    "a token": partial(of_text, "phi3", [group(1, (1,))]),  # fewer tokens than chunks
    "one completion": partial(of_text, "phi3", [group(5, (9,)), group(30, (2,))]),
    "glm4v": partial(with_pictures, "glm4v"),  # positions of three rows
    **{name: partial(of_a_family, name) for name in OF_FAMILIES},
    "pictures of tools": partial(with_pictures_of_tools, "llava"),
    "adapters": partial(with_pictures, "llava"),
}
QUICK = ("mixtral", "llava")
UPDATE, UPDATED = "critic", "llava_onevision"


def model_of(case: str, own: Any) -> Any:
    model = copy.deepcopy(own)
    admit(model, verdict_of(own))
    if case == "adapters":
        torch.manual_seed(0)
        settings = peft.LoraConfig(
            r=4, target_modules="all-linear", init_lora_weights=False, lora_alpha=1
        )
        model = peft.get_peft_model(model, settings)
    return model


@cache
def inputs_of(case: str) -> Inputs:
    """The same in each process, each made there: a pickled LLaVA gives no hidden states."""
    return CASES[case]()


def learnt(
    case: str, inputs: Inputs, context: Context | None, checkpointing: bool = False
) -> dict[str, Any]:
    """Scores, and the gradient of every parameter."""
    model, groups = model_of(case, inputs[0]), inputs[1]
    if checkpointing:
        model.train()
        unwrapped(model).gradient_checkpointing_enable({"use_reentrant": False})
    scores = completion_scores(model, groups, Distribution(0.7, forbidden=(2, 3)), context=context)
    weighted_sum(scores).backward()
    scored = [scores.logprobs.detach(), scores.entropy.detach()]
    return {"scores": scored, "gradients": gradients_of(model, context)}


def _work(
    rank: int,
    mesh: Any,
    size: int,
    cases: Sequence[str],
    saved: Mapping[str, General],
    out: Path,
    mixed: Path | None,
) -> None:
    MADE.update(saved)
    context = DistributedProcessGroup(rank, size, size).context
    found = {
        (case, checkpointing): learnt(case, inputs_of(case), context, checkpointing)
        for case in cases
        for checkpointing in (False, True)
    }
    if rank == size - 1:
        torch.save(found, out / "found.pt")
    if mixed is None:
        return
    config = config_of(UPDATE, MADE[UPDATED].folder, out)
    family = family_of(config)
    torch.manual_seed(0)
    models = build_training_models(
        config,
        family,
        media_cache(family, config),
        DistributedProcessGroup(rank, size, 2),
        partial(fsdp.load, mesh=mesh),
    )
    updated = models_learnt(UPDATE, config, models, mixed, size // 2, rank // 2)
    if rank == size - 1:
        torch.save(updated, out / "update.pt")


def saved(*names: str) -> dict[str, General]:
    """Models whose files are written, which in a process group only its first rank would do."""
    own = {name: General(name) for name in names}
    assert all(general.folder.is_dir() for general in own.values())
    return own


@pytest.fixture(scope="module")
def on_two(tmp_path_factory) -> Any:
    out = tmp_path_factory.mktemp("two")
    on_ranks(2, _work, 2, QUICK, saved("llava"), out, None)
    return torch.load(out / "found.pt")


@pytest.fixture(scope="module")
def on_four(mixed, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("four")
    on_ranks(4, _work, 4, tuple(CASES), saved(*NAMES), out, mixed)
    return out


@cache
def alone(case: str) -> dict[str, Any]:
    return learnt(case, inputs_of(case), None)


def assert_equal(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    for ours, theirs in zip(got["scores"], wanted["scores"], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert_gradients(got["gradients"], wanted["gradients"])


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("case", QUICK)
def test_two_ranks_compute_what_one_process_computes(case, checkpointing, on_two):
    assert_equal(on_two[case, checkpointing], alone(case))


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_four_ranks_compute_what_one_process_computes(case, checkpointing, on_four):
    assert_equal(torch.load(on_four / "found.pt")[case, checkpointing], alone(case))


@pytest.mark.slow
def test_two_pairs_of_ranks_learn_what_one_process_learns(on_four, mixed, tmp_path):
    """Policy, reference and critic with sharded weights; texts, pictures and a video."""
    config = config_of(UPDATE, MADE[UPDATED].folder, tmp_path)
    family = family_of(config)
    torch.manual_seed(0)
    models = build_training_models(config, family, media_cache(family, config))
    wanted, got = models_learnt(UPDATE, config, models, mixed), torch.load(on_four / "update.pt")
    for ours, theirs in zip(got["stats"], wanted["stats"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-5)
    pairs = zip(got["weights"], wanted["weights"], strict=True)
    apart = torch.cat([(ours - theirs).abs().flatten() for ours, theirs in pairs])
    assert (apart > 1e-5).float().mean() < 1e-3  # where a gradient is only rounding


def part_of(groups: list[GroupInput], rank: int = 0) -> Part:
    return Part.of(pack_text(small("phi3"), groups).layout, Context(rank, 2, None), CPU)


def test_each_token_is_on_one_rank():
    sequence = pack_text(small("phi3"), GROUPS)
    parts = [part_of(GROUPS, rank) for rank in (0, 1)]
    given = {"input_ids": sequence.ids[None], "position_ids": sequence.positions}
    own = [part.arguments(given) for part in parts]
    tokens = len(sequence.ids)
    rows = torch.cat([part.rows for part in parts])
    assert sorted({*rows.tolist()}) == list(range(tokens))
    assert len(rows) == parts[0].own_tokens * 2 < tokens + 4
    for part, arguments in zip(parts, own, strict=True):
        assert torch.equal(arguments["input_ids"][0], sequence.ids[part.rows])
        assert torch.equal(arguments["position_ids"], sequence.positions[:, part.rows])


def test_what_no_part_is_known_of_is_named():
    part = part_of(GROUPS)
    per_token, states = torch.zeros(1, part.tokens, 3, 2), torch.zeros(1, 7, 4)
    cut = part.arguments({"per_layer_inputs": per_token, "use_cache": False})
    assert cut["per_layer_inputs"].shape == (1, part.own_tokens, 3, 2)
    for value in (states, [states], {"full_attention": states}):
        with pytest.raises(PrefixSharingError, match=r"do not cut 'cross_attention_states'"):
            part.arguments({"cross_attention_states": value})


def test_models_that_cannot_share_sequences_say_why():
    context = Context(0, 2, None)
    ranks = {"ranks": 2, "context_parallel_size": 2}
    config = Config.model_validate({"model": {"path": "m"}, "resources": ranks})
    recurrent, windows, padded = of_text("qwen3_next")[0], of_text("gpt_oss")[0], small("phi3")
    admit(padded, None)
    for model, why in (
        (recurrent, "carry a state"),
        (windows, "more than causal"),
        (padded, "computes its prompt again"),
    ):
        with pytest.raises(ValueError, match=rf"{why}.* set resources\.context_parallel_size=1"):
            check_context(model)
        with pytest.raises(ValueError, match=why):
            completion_scores(model, GROUPS, context=context)
        with pytest.raises(ValueError, match=why):  # at the start
            build_packed_model(config, model, ModelInputs(None, None))
