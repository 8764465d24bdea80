"""The memory estimate against what autograd really keeps."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from mmr1.config import Config
from mmr1.estimate.load import Load, longest_load
from mmr1.estimate.memory import (
    GIB,
    activation_elements,
    bytes_while_sampling,
    estimate,
    saving_bytes,
)
from mmr1.estimate.shapes import read_shapes
from mmr1.trainer.forward.any_model.sharing import settle
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.streaming import PIECE_BYTES
from mmr1.vision.families.loading import architecture_named, architecture_of
from mmr1.vision.families.tiny import new_model
from mmr1.vision.features import FeatureCache
from tests.estimate.kept_bytes import kept_bytes
from tests.estimate.models import config_for
from tests.trainer.tiny_groups import group, image
from tests.vision.families.tiny_family import FAMILIES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 8])
def test_activations_are_what_autograd_keeps(twenty_m, dtype, n):
    model = AutoModelForImageTextToText.from_pretrained(twenty_m, dtype=dtype)
    groups = [group([image(280, 280, seed)], 20, [64] * n, seed) for seed in range(2)]
    of_token, of_vision_token = activation_elements(architecture_of(model).shape(model.config))
    tokens = sum(len(g.prompt_ids) + 64 * n for g in groups)
    vision = sum(m.tokens for g in groups for m in g.media)
    expected = dtype.itemsize * (of_token * tokens + of_vision_token * vision)
    assert kept_bytes(model, groups) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "qwen2_5_vl"])
def test_each_family_knows_its_layers(name, tmp_path):
    new_model(tmp_path / name, "20m", family=name)
    architecture, tiny = architecture_named(name), FAMILIES[name]
    model = architecture.auto_class.from_pretrained(tmp_path / name, dtype=torch.float32)
    if not tiny.sees:
        settle(model, tiny.family, "packed", name)
    media = [tiny.image(280, 280, seed) for seed in range(2)] if tiny.sees else []
    groups = [tiny.group(media[i : i + 1], 20, [64] * 8, i) for i in range(2)]
    of_token, of_vision_token = activation_elements(architecture.shape(model.config))
    tokens = sum(len(g.prompt_ids) + 64 * 8 for g in groups)
    expected = 4 * (of_token * tokens + of_vision_token * sum(m.tokens for m in media))
    assert kept_bytes(model, groups) == pytest.approx(expected, rel=0.1)


def test_a_3b_model_has_the_published_size(three_b):
    shapes = read_shapes(config_for(three_b))
    assert shapes.weights == pytest.approx(3.75e9, rel=0.03)
    frozen = read_shapes(config_for(three_b, model={"freeze_vision_tower": True}))
    assert shapes.trained - frozen.trained == pytest.approx(0.67e9, rel=0.05)
    adapted = read_shapes(config_for(three_b, model={"lora": {"rank": 16}}))
    assert adapted.trained < 0.02 * shapes.weights


def test_ranks_share_what_is_sharded(three_b):
    load = Load(1100, 1024, 512)
    single = estimate(config_for(three_b), load)
    sharded = estimate(config_for(three_b, resources={"ranks": 8}), load)

    def bytes_of(result, name):
        return next(i.bytes for i in result.items if (i.owner, i.name) == ("trainer", name))

    for name in ("gradients", "AdamW moments"):
        assert bytes_of(sharded, name) == pytest.approx(bytes_of(single, name) / 8)
    # Ranks hold float32 shards; one process bfloat16 weights and their float32 masters.
    assert bytes_of(sharded, "weights") == pytest.approx(2 * bytes_of(single, "weights") / 8)
    assert bytes_of(sharded, "float32 master weights") == 0
    assert bytes_of(single, "float32 master weights") == 2 * bytes_of(single, "weights")


def test_copies_of_a_model_are_sharded_over_fewer_ranks(three_b):
    load = Load(1100, 1024, 512)

    def items(**resources):
        result = estimate(config_for(three_b, resources={"ranks": 8, **resources}), load)
        return {i.name: i.bytes for i in result.items if i.owner == "trainer"}

    whole, copies = items(), items(fsdp_size=2)
    for name in ("weights", "gradients", "AdamW moments"):
        assert copies[name] == pytest.approx(4 * whole[name])
    assert copies["float32 master weights"] == 0
    assert items(fsdp_size=8) == whole


def test_a_frozen_tower_is_whole_on_every_rank_and_keeps_features(three_b):
    load = Load(1100, 1024, 512)
    model = {"freeze_vision_tower": True}
    few, many = (
        estimate(config_for(three_b, model=model, resources={"ranks": n}), load) for n in (8, 800)
    )
    tower = 2 * 0.67e9
    weights = [next(i.bytes for i in r.items if i.name == "weights") for r in (few, many)]
    assert weights[1] == pytest.approx(tower + 4 * 3.09e9 / 800, rel=0.05)
    assert weights[0] == pytest.approx(tower + 4 * 3.09e9 / 8, rel=0.05)
    features = {i.name: i.bytes for i in few.items if i.owner == "trainer"}["vision features"]
    assert features == FeatureCache()._max_bytes == 2 * GIB


def test_every_rank_has_all_weights_in_4_bits(three_b):
    load, model = Load(1100, 1024, 512), {"lora": {"load_in_4bit": True}}
    alone, many = (
        estimate(config_for(three_b, model=model, resources={"ranks": n}), load) for n in (1, 800)
    )
    weights = [next(i.bytes for i in r.items if i.name == "weights") for r in (alone, many)]
    embedding = 151936 * 2048  # the output's too
    in_4_bits = 4.127 / 8 * (3.75e9 - embedding)  # 0.127 bits of constants, says the paper
    assert weights == pytest.approx([in_4_bits + 2 * embedding, in_4_bits], rel=0.02)
    gathered = {i.name: i.bytes for i in many.items}["gathered weights"]
    assert gathered == pytest.approx(2 * embedding, rel=0.05)


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_critic_takes_what_the_policy_does(three_b, ranks):
    """Sharded as the policy is, and without gradients while an engine samples."""
    sections = {"algorithm": {"name": "ppo"}, "resources": {"ranks": ranks}}
    names = ("weights", "AdamW moments", "float32 master weights", "vision features")
    load = Load(1100, 1024, 512)
    for of_model in ({}, {"lora": {"rank": 16}}, {"freeze_vision_tower": True}):
        model = {"dtype": "bfloat16", **of_model}
        result = estimate(config_for(three_b, model=model, **sections), load)
        of = {item.name: item.bytes for item in result.items if item.owner == "trainer"}
        assert of["critic"] == sum(of[name] for name in names)
        assert of["gradients of the critic"] == of["gradients"]
        without = config_for(three_b, model=model, resources={"ranks": ranks})
        alone = bytes_while_sampling(without, estimate(without, load))
        assert bytes_while_sampling(without, result) == pytest.approx(alone + of["critic"])


def test_a_critic_of_another_size_is_counted_by_its_own(three_b, twenty_m):
    critic = {"name": "ppo", "advantage": {"critic": {"path": str(twenty_m)}}}
    own = {"dtype": "float32"}
    (counted,) = (
        item.bytes
        for item in estimate(
            config_for(three_b, model=own, algorithm=critic), Load(1100, 1024, 512)
        ).items
        if item.name == "critic"
    )
    weights = read_shapes(config_for(twenty_m)).weights
    assert counted == (4 + 8) * weights  # float32 weights and two moments


def test_the_engine_has_a_precision_of_its_own(three_b):
    load, model = Load(1100, 1024, 512), {"dtype": "float32"}
    same = estimate(config_for(three_b, model=model), load)
    rounded = estimate(
        config_for(three_b, model=model, rollout={"engine": {"dtype": "bfloat16"}}), load
    )
    assert rounded.total("engine") == same.total("engine") / 2
    assert rounded.total("trainer") == same.total("trainer")


def test_a_reference_of_its_own_is_counted_by_its_own_size(twenty_m, tiny_model):
    def reference(**keys: object) -> float | None:
        update = {"name": "grpo", "kl": {"coef": 0.1, "reference": keys}}
        config = Config(model={"path": str(tiny_model), "dtype": "bfloat16"}, algorithm=update)
        items = {i.name: i.bytes for i in estimate(config, Load(64, 16, 8)).items}
        return items.get("reference policy")

    def bfloat16(path: object) -> int:
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(path))
        return 2 * sum(p.numel() for p in model.parameters())

    assert reference() == bfloat16(tiny_model)
    assert (
        reference(type="model", path=str(twenty_m)) == bfloat16(twenty_m) > 2 * bfloat16(tiny_model)
    )
    assert reference(type="server", url="http://teacher:8000") is None
    with pytest.raises(ValueError, match=r"algorithm.kl.reference.path 'nowhere' has no"):
        reference(type="model", path="nowhere")


def test_a_text_model_is_assumed_to_see_nothing(tmp_path):
    new_model(tmp_path / "text", family="qwen2")
    rollout = {"max_prompt_length": 500, "max_response_length": 100}
    assert longest_load(config_for(tmp_path / "text", rollout=rollout)) == Load(500, 0, 100)


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_a_save_in_the_background_takes_a_copy_of_what_it_writes(state_dtype, twenty_m):
    sections = {"model": {"dtype": "bfloat16"}, "optimizer": {"state_dtype": state_dtype}}
    at_once = config_for(twenty_m, **sections)
    background = config_for(
        twenty_m, trainer={"checkpoints": {"save_steps": 1, "async_save": True}}, **sections
    )
    model = AutoModelForImageTextToText.from_pretrained(twenty_m, dtype=torch.bfloat16)
    weights = sum(p.nbytes for p in model.parameters())
    state = sum(t.nbytes for t in Optimizer(model, background.optimizer, 1).tensors().values())
    assert saving_bytes(at_once) == PIECE_BYTES
    assert saving_bytes(background) == pytest.approx(PIECE_BYTES + weights + state, rel=1e-3)


def test_a_save_has_one_weight_at_a_time_that_is_put_together(three_b):
    """The embedding, of 151,936 tokens."""
    embedding = 2 * 151936 * 2048
    for sections in ({"resources": {"ranks": 8}}, {"model": {"lora": {"rank": 16}}}):
        assert saving_bytes(config_for(three_b, **sections)) == PIECE_BYTES + embedding < GIB
