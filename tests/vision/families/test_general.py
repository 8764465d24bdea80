"""Models that mmr1 does not name: log-probs and gradients against transformers' plain forward."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import peft
import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    SmolVLMVideoProcessor,
)
from transformers.models.smolvlm import processing_smolvlm

from mmr1.config import Config
from mmr1.estimate.load import Load
from mmr1.estimate.memory import activation_elements, estimate
from mmr1.rewards import build_composite_reward
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.scores import completion_scores, completion_states
from mmr1.trainer.inputs import check_inputs
from mmr1.trainer.models.loading import check_head
from mmr1.types import Message, RolloutGroup, Sample, Span, TextPart
from mmr1.vision.families.chat import ChatOptions
from mmr1.vision.families.loading import (
    architecture_named,
    architecture_of,
    load_family,
    model_parts,
    names_in_files,
    unwrapped,
)
from tests.estimate.kept_bytes import kept_bytes
from tests.vision.families.comparisons import assert_same
from tests.vision.families.general_family import (
    GENERAL,
    IMAGE,
    SQUARE,
    General,
    plain_logits,
    plain_scores,
)
from tests.vision.families.general_models import MODELS, PATCH, SEES_VIDEOS


@pytest.fixture(params=GENERAL.values(), ids=GENERAL)
def general(request) -> General:
    return request.param


@pytest.fixture(params=[False, True], ids=["padded", "packed"])
def packed(request) -> bool:
    return request.param


def test_scores_and_gradients_are_those_of_the_plain_forward(general, packed):
    model, groups = general.model(packed), general.groups()
    got = completion_scores(
        model, general.inputs(groups), Distribution(0.7, forbidden=general.family.forbidden_ids)
    )
    assert_same(model, got, plain_scores(general, model, groups, 0.7))
    # Seen, too: each part of the model has learned from the images.
    for module in (model_parts(model).tower, model_parts(model).language_model):
        assert any(p.grad is not None and p.grad.any() for p in module.parameters())


def test_each_completion_is_scored_as_if_it_were_alone(general, packed):
    """In training, where layers checkpoint, dropout is off and Gemma 3 wants its token types."""
    model, group = general.model(packed).train(), general.groups()[-1]
    model.gradient_checkpointing_enable({"use_reentrant": False})
    together = completion_scores(model, general.inputs([group])).logprobs
    for index, completion in enumerate(group.completions):
        alone = RolloutGroup(group.prompt, (completion,))
        scores = completion_scores(model, general.inputs([alone])).logprobs[0]
        torch.testing.assert_close(together[index, : len(scores)], scores, atol=1e-5, rtol=0)


def test_adapters(general, packed):
    settings = {"r": 4, "lora_alpha": 1, "init_lora_weights": False}
    targets = "all-linear"
    if general.name == "qwen3_omni_moe_thinker":  # peft shortens its mlp.0 to 0, a layer's name too
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "linear_fc1"]
    model = peft.get_peft_model(
        general.model(packed), peft.LoraConfig(target_modules=targets, **settings)
    )
    groups = general.groups()[:2]
    got = completion_scores(
        model, general.inputs(groups), Distribution(forbidden=general.family.forbidden_ids)
    )
    assert_same(model, got, plain_scores(general, model, groups, 1.0))


def test_states_at_the_tokens_are_those_of_the_plain_forward(general, packed):
    """What a reward model reads: the last token's state among them."""
    model, group = general.model(packed), general.group((IMAGE,), 1)
    states = completion_states(model, general.inputs([group]), "at").hidden
    rows = [torch.tensor(c.token_ids) for c in group.completions]
    head = unwrapped(model).get_output_embeddings()
    wanted = [plain_logits(general, model, group.prompt, row)[0, -len(row) :] for row in rows]
    torch.testing.assert_close(head(states), torch.cat(wanted), atol=1e-5, rtol=0)


def test_headers_tell_the_length_of_a_prompt(general):
    for group, inputs in zip(general.groups(), general.inputs(general.groups()), strict=True):
        length = general.family.prompt_length(group.prompt)
        assert length == len(inputs.prompt_ids)
        if len(group.prompt.media) == 1:
            tokens = general.family.media_tokens(group.prompt.media[0])
            assert inputs.media[0].tokens == tokens > 1


@pytest.mark.parametrize("name", MODELS)
def test_the_estimate_knows_the_layers_and_their_rows(name):
    """Rows of the tower against the pixels that go into it, sizes against the weights."""
    general = GENERAL[name]
    config = general.model().config
    shape = architecture_named("general_vl").shape(config)
    (inputs,) = general.inputs([general.group((SQUARE,), 1)])
    tower, pixels = shape.tower, inputs.arguments["pixel_values"]
    seen = inputs.prompt_ids.eq(config.image_token_id).sum().item()
    frames = getattr(config.vision_config, "temporal_patch_size", 1)  # of one patch
    rows = pixels.numel() / (3 * frames * PATCH**2)
    # LLaVA-OneVision adds a token at the end of each line.
    assert tower.rows_per_token == pytest.approx(rows / seen, rel=0.12)
    assert (tower.layers, tower.hidden, tower.intermediate, tower.heads) == (2, 64, 128, 2)
    language = shape.language
    assert (language.layers, language.hidden, language.keys) == (2, 128, 64)


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("idefics3", 1.0),
        ("llava_onevision", 1.0),
        ("internvl", 1.0),
        ("glm4v", 1.3),  # twice as many norms
        ("gemma3", 1.45),
        ("qwen3_5", 3.5),  # linear attention, as it is without a GPU's kernels
    ],
)
def test_how_far_the_estimate_is_from_what_autograd_keeps(name, times):
    """Of a text. It takes every layer for one with plain attention and two norms."""
    general = GENERAL[name]
    model, group = general.model(), general.group((), 0)
    rows = tuple(
        replace(group.completions[0], token_ids=np.arange(60, 124), logprobs=np.zeros(64))
        for _ in range(8)
    )
    (inputs,) = general.inputs([replace(group, completions=rows)])
    of_token, _ = activation_elements(architecture_of(model).shape(model.config))
    estimated = 4 * of_token * 8 * (len(inputs.prompt_ids) + 64)
    assert kept_bytes(model, [inputs]) == pytest.approx(times * estimated, rel=0.1)


@pytest.mark.parametrize("sharing", ["auto", "padded"])
def test_the_estimate_counts_a_prompt_as_often_as_the_forward_computes_it(general, sharing):
    config = Config.model_validate(
        {
            "model": {"path": str(general.folder), "dtype": "float32", "sharing": sharing},
            "data": {"train_batch_size": 1},
            "rollout": {"n": 8},
            "trainer": {"max_tokens_per_gpu": 1_000_000},
        }
    )

    def activations(n: int) -> float:
        with_n = config.changed({"rollout.n": n})
        items = {item.name: item.bytes for item in estimate(with_n, Load(100, 60, 10)).items}
        return items["activations of a micro-batch"]

    if sharing == "padded":
        assert activations(8) == pytest.approx(8 * activations(1))
    else:  # completions are a tenth of the prompt
        assert activations(1) < activations(8) < 1.8 * activations(1)


def test_what_an_environment_said_is_read_and_not_scored(packed):
    general = GENERAL["idefics3"]
    model, group = general.model(packed), general.group((IMAGE,), 3)
    spans = [(Span("assistant", 3, ""), Span("tool", 3, ""), Span("assistant", 2, "")), (), ()]
    turns = [replace(c, spans=s) for c, s in zip(group.completions, spans, strict=True)]
    talk = replace(group, completions=tuple(turns))
    whole, got = (completion_scores(model, general.inputs([g])).logprobs for g in (group, talk))
    whole[0, 3:6] = 0
    torch.testing.assert_close(got, whole, atol=1e-6, rtol=0)


@torch.no_grad()
def test_linear_attention_runs_on_from_one_packed_sequence_into_the_next():
    """Why a state is begun anew by mmr1: without a GPU's kernels transformers ignores where
    sequences begin.
    """
    model = GENERAL["qwen3_5"].model().get_decoder()
    second, lengths = torch.randint(60, 500, (9,)), (70, 9)
    ends = torch.tensor([0, 70, 79], dtype=torch.int32)
    where = {
        "position_ids": torch.cat([torch.arange(n) for n in lengths]).expand(4, 1, -1),
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": 70,
        "max_length_k": 70,
        "seq_idx": torch.repeat_interleave(torch.arange(2), torch.tensor(lengths))[None].int(),
    }
    states = [
        model(
            input_ids=torch.cat([first, second])[None], use_cache=False, **where
        ).last_hidden_state[0, 70:]
        for first in torch.randint(60, 500, (2, 70))
    ]
    assert (states[0] - states[1]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("name", "sharing", "why"),
    [("qwen3_5", "auto", "carry a state"), ("idefics3", "padded", "model.sharing=padded")],
)
def test_ranks_that_cannot_share_sequences_are_refused(name, sharing, why, tmp_path, digits):
    folder = GENERAL[name].folder
    config = Config.model_validate(
        {
            "model": {"path": str(folder), "dtype": "float32", "sharing": sharing},
            "data": {"train": str(digits / "rl.jsonl")},
            "resources": {"ranks": 2, "context_parallel_size": 2},
            "trainer": {"output_dir": str(tmp_path / "run")},
        }
    )
    with (
        build_composite_reward(config.rewards, config.scoring) as rewards,
        pytest.raises(ValueError, match=rf"{why}.*; set resources\.context_parallel_size=1"),
    ):
        check_inputs(config, rewards, train=True)


def test_a_model_with_scaled_logits_is_refused():
    """Its log-probs are not those of hidden states times the output embedding."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 60, "pad_token_id": 0}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2}
    config = CohereConfig(**sizes, **heads, bos_token_id=1, eos_token_id=2, logit_scale=0.1)
    with pytest.raises(ValueError, match=r"'m': its logits .* are scaled or capped"):
        check_head(CohereForCausalLM(config).eval(), "'m'")
    config.logit_scale = 1.0
    check_head(CohereForCausalLM(config).eval(), "'m'")


def test_a_model_with_capped_logits_is_refused_though_its_own_are_small():
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 60, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    model = Gemma2ForCausalLM(Gemma2Config(**sizes, **heads, final_logit_softcapping=30.0)).eval()
    with pytest.raises(ValueError, match=r"'m': its logits .* are scaled or capped"):
        check_head(model, "'m'")
    model.config.final_logit_softcapping = None
    check_head(model, "'m'")


@pytest.mark.parametrize("name", ["llava_onevision", "gemma3", "llava"])
def test_adapters_leave_the_names_that_engines_know(name):
    """Those of the hub, whose files have other ones than transformers' models."""
    model = GENERAL[name].model()
    plain = names_in_files(model)
    assert any(own != in_files for own, in_files in plain.items())
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", r=2))
    assert names_in_files(adapted) == plain


def test_a_package_that_a_processor_needs_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "smolvlm"
    shutil.copytree(GENERAL["idefics3"].folder, folder)
    for file in folder.glob("*.json"):
        file.write_text(file.read_text().replace("Idefics3Processor", "SmolVLMProcessor"))
    monkeypatch.setattr(processing_smolvlm, "num2words", None)
    no_video = SmolVLMVideoProcessor(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    no_video.save_pretrained(folder)
    with pytest.raises(
        ValueError, match=r"`num2words` is required .* pip install 'mmr1\[models\]'"
    ):
        load_family(str(folder))


def test_stop_and_forbidden_tokens_come_from_the_models_files(general):
    tokenizer, config = general.family.tokenizer, general.model().config
    saved = json.loads((general.folder / "generation_config.json").read_text())["eos_token_id"]
    listed = [saved] if isinstance(saved, int) else saved
    assert general.family.stop_ids == tuple(sorted({*listed, tokenizer.eos_token_id}))
    forbidden = general.family.forbidden_ids
    assert config.image_token_id in forbidden
    assert not set(forbidden) & set(general.family.stop_ids)
    if general.name in SEES_VIDEOS and hasattr(config, "video_token_id"):
        assert config.video_token_id in forbidden


@pytest.mark.parametrize("name", ["gemma3", "qwen3_5"])
def test_a_template_in_place_of_the_models_own_thinks_or_not(name, tmp_path):
    template = "{{ messages[0].content[0].text }}{% if enable_thinking %} think{% endif %}"
    folder = str(GENERAL[name].folder)
    sample = Sample("s", (Message("user", (TextPart("Add."),)),))
    for thinking, text in ((True, "Add. think"), (False, "Add.")):
        family = load_family(folder, ChatOptions(template, {"enable_thinking": thinking}))
        assert family.render_prompt(sample).text == text
        family.processor.save_pretrained(tmp_path / text)
        assert template in (tmp_path / text / "chat_template.jinja").read_text()
