"""Each family: the packed forward, the padded one, and transformers' forward of each completion.

Log-probs, entropies and the gradient of every parameter, to 1e-5 in float32.
"""

from __future__ import annotations

from dataclasses import replace

import peft
import pytest
import torch
from PIL import Image

from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.scores import completion_scores, completion_states
from mmr1.vision.families.loading import architecture_of, model_parts, unwrapped
from mmr1.vision.features import FeatureCache
from tests.padded_forward import padded_hidden, padded_scores
from tests.vision.families.comparisons import TOLERANCE, assert_same, gradients
from tests.vision.families.tiny_family import FAMILIES, VISION, TinyFamily, plain_scores
from tests.vision.media import noise

# The videos are wider than they last: transformers' own positions after a longer one are not those
# of the release of Qwen2.5-VL (see mrope.py).
CASES = {
    "text": lambda f: [f.group([], 9, [3, 7, 1, 12], 0), f.group([], 30, [5, 5], 1)],
    "image": lambda f: [
        f.group([f.image(84, 64)], 11, [5, 9], 1),
        f.group([f.image(60, 99, 1)], 3, [4], 2),
    ],
    "two images": lambda f: [f.group([f.image(84, 64), f.image(112, 84, 3)], 6, [4, 4, 4], 2)],
    "one image in two prompts": lambda f: [
        f.group([f.image(84, 64)], 6, [4, 2], 2),
        f.group([f.image(64, 64, 9), f.image(84, 64)], 5, [7, 3], 3),
    ],
    "video": lambda f: [
        f.group([f.video(20, 192, 64, 2.0)], 5, [8, 2, 6], 3),
        f.group([f.video(20, 192, 64, 2.0), f.video(20, 64, 192, 1.0)], 6, [3, 5], 4),
    ],
    "everything": lambda f: [
        f.group([], 9, [3, 7, 1, 12], 0),
        f.group([f.image(84, 64)], 11, [5, 9], 1),
        f.group([f.video(20, 192, 64, 2.0)], 5, [8], 3),
        f.group([f.image(140, 112, 5), f.video(20, 64, 192, 1.0)], 5, [8, 2], 4),
        f.group([], 4, [1], 5),
    ],
}
SUPPORTED = [
    (name, case) for name in FAMILIES for case in CASES if name in VISION or case == "text"
]


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
def tiny(request) -> TinyFamily:
    return request.param


def fullest(tiny: TinyFamily):
    """All that the family supports, in one batch."""
    return CASES["everything" if tiny.sees else "text"](tiny)


@pytest.mark.parametrize(("name", "case"), SUPPORTED)
def test_packed_and_padded_equal_the_plain_forward(name, case):
    tiny = FAMILIES[name]
    model, groups = tiny.model(), CASES[case](tiny)
    plain = plain_scores(model, groups, 0.7)
    if tiny.sees:
        assert_same(model, padded_scores(model, groups, Distribution(0.7)), plain)
    assert_same(
        model, completion_scores(model, groups, Distribution(0.7)), plain_scores(model, groups, 0.7)
    )
    if case != "text":
        tower = model_parts(model).tower
        assert all(p.grad is not None and p.grad.any() for p in tower.blocks[0].parameters())


def test_checkpointing_changes_nothing(tiny):
    model, groups = tiny.model(), fullest(tiny)
    wanted = gradients(model, completion_scores(model, groups))
    model.train()  # layers checkpoint only in training
    model.gradient_checkpointing_enable({"use_reentrant": False})
    actual = gradients(model, completion_scores(model, groups))
    for name, gradient in wanted.items():
        torch.testing.assert_close(actual[name], gradient, atol=TOLERANCE, rtol=TOLERANCE)


def test_adapters(tiny):
    settings = {"r": 4, "lora_alpha": 1, "init_lora_weights": False}
    model = peft.get_peft_model(
        tiny.model(), peft.LoraConfig(target_modules="all-linear", **settings)
    )
    groups = fullest(tiny)
    assert_same(model, completion_scores(model, groups), plain_scores(model, groups, 1.0))
    if tiny.sees:  # layers are adapted in place; the padded forward takes the model itself
        got = padded_scores(unwrapped(model), groups)
        assert_same(model, got, plain_scores(model, groups, 1.0))
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    assert any("visual" in n for n in trained) == tiny.sees
    assert architecture_of(model) is architecture_of(unwrapped(model))


@pytest.mark.parametrize("name", VISION)
def test_a_frozen_tower_runs_once_for_each_medium(name):
    tiny = FAMILIES[name]
    model, groups, features = tiny.model(), CASES["everything"](tiny), FeatureCache()
    tower, runs = model_parts(model).tower, []
    tower.requires_grad_(False)
    tower.register_forward_pre_hook(lambda _, args: runs.append(len(args[0])))
    for _ in range(3):
        kept = completion_scores(model, groups, features=features)
    assert runs == [len(m.patches) for m in {m.digest: m for g in groups for m in g.media}.values()]
    assert_same(model, kept, plain_scores(model, groups, 1.0))


def test_parts_hold_every_weight_once(tiny):
    """What is frozen, sharded and counted by parts must be the whole model."""

    def ids(*modules):
        return sorted(id(p) for module in modules for p in module.parameters())

    model = tiny.model()
    parts = model_parts(model)
    tower = [parts.tower] if tiny.sees else []
    assert ids(*tower, parts.language_model, parts.lm_head) == ids(model)
    text = [*parts.layers, parts.embed_tokens, parts.language_model.norm]
    assert ids(*text) == ids(parts.language_model)
    if tiny.sees:
        rest = [m for n, m in parts.tower.named_children() if n in ("patch_embed", "pos_embed")]
        assert ids(*parts.tower_blocks, *parts.tower_mergers, *rest) == ids(parts.tower)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("side", [56, 64])
def test_the_processors_own_picture_is_one_grey_level_off_if_it_is_resized(name, side):
    """We resize by Pillow, as qwen-vl-utils does; transformers' processors by torchvision.

    Both round to 8 bits, in places to either side. That is all that a forward with transformers'
    pictures differs by: on the same patches, hidden states are the model's own.
    """
    tiny = FAMILIES[name]
    model, medium = tiny.model(), tiny.image(side, side)
    processor = tiny.family.processor.image_processor
    picture = Image.fromarray(noise(side, side))
    theirs = processor(images=[picture], return_tensors="pt")["pixel_values"]
    level = 1 / (255 * min(processor.image_std))
    off = (medium.patches - theirs).abs()
    resized = side % (processor.patch_size * processor.merge_size) > 0
    assert off.max() < 1.01 * level
    assert (0 < (off > 0.5 * level).float().mean() < 0.01) == resized
    states = []
    for patches in (medium.patches, theirs):
        shown = replace(medium, stored=patches)
        group = tiny.group([shown], 11, [5], 1)
        with torch.no_grad():
            packed = completion_states(model, [group]).hidden
            own = padded_hidden(model, [group])[0, len(group.prompt_ids) - 1 : -1]
        torch.testing.assert_close(packed, own, atol=5e-6, rtol=0)
        states.append(packed)
    assert ((states[0] - states[1]).abs().max() > 1e-4) == resized
