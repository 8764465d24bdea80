"""The packed forward of any model, against transformers' own forward of each completion alone."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
)
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.any_model import attention, masks, recurrent, sharing
from mmr1.trainer.forward.any_model.forward import (
    Verdict,
    admit,
    install,
    run_packed,
    shared_states,
    verdict_of,
)
from mmr1.trainer.forward.any_model.layout import PrefixSharingError, SharedLayout
from mmr1.trainer.forward.any_model.sharing import probe
from mmr1.trainer.forward.context import Context
from mmr1.trainer.forward.micro_batches import micro_batches
from mmr1.trainer.forward.packing import NAME, pack
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import TokenScores
from mmr1.trainer.forward.unshared import unshared_states
from tests.trainer.forward.any_models import (
    ARCHITECTURES,
    GROUPS,
    group,
    of_type,
    plain_scores,
    small,
    tokens,
)
from tests.vision.families.comparisons import assert_same
from tests.vision.families.general_family import GENERAL, IMAGE, SQUARE

QUICK: tuple[str, ...] = ("gpt_oss", "qwen3_next")
NAMES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ARCHITECTURES]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_scores_and_gradients_are_those_of_each_completion_alone(name, checkpointing):
    """Several groups in one forward, of which one has a single completion."""
    own = small(name)
    packed = copy.deepcopy(own)
    admit(packed, Verdict("packed"))
    if checkpointing:
        packed.train()
        packed.gradient_checkpointing_enable({"use_reentrant": False})
    scores = completion_scores(packed, GROUPS, Distribution(0.7))
    wanted = plain_scores(own, GROUPS, 0.7)
    torch.testing.assert_close(scores.logprobs, wanted.logprobs, atol=1e-5, rtol=0)
    packed_gradients, gradients = (gradients_of(m, s) for m, s in ((packed, scores), (own, wanted)))
    assert packed_gradients.keys() == gradients.keys()
    largest = max(float(g.abs().max()) for g in gradients.values())
    for parameter, gradient in gradients.items():
        error = (packed_gradients[parameter] - gradient).abs().max()
        assert error <= 1e-5 * max(1.0, largest), parameter


def gradients_of(model, scores: TokenScores) -> dict[str, torch.Tensor]:
    places = torch.arange(scores.logprobs.shape[1])
    (scores.logprobs * places.cos() + scores.entropy * places.sin()).sum().backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["gemma3", "glm4v"])
def test_pictures_of_several_groups_go_through_one_forward(name):
    """Windows, pictures whose tokens see each other, and positions of three rows."""
    general = GENERAL[name]
    model, forwards = general.model(packed=True), []
    groups = [general.group((IMAGE,), 1), general.group((SQUARE, IMAGE), 3)]
    model.get_decoder().register_forward_hook(lambda *_: forwards.append(1))
    together = completion_scores(model, general.inputs(groups))
    assert len(forwards) == 1
    apart = [completion_scores(model, general.inputs([g])).logprobs for g in groups]
    for rows, alone in zip(together.logprobs.split([2, 3]), apart, strict=True):
        torch.testing.assert_close(rows[:, : alone.shape[1]], alone, atol=1e-5, rtol=0)


def test_groups_of_other_arguments_are_micro_batches_of_their_own():
    general = GENERAL["llava_onevision"]
    media = [(), (IMAGE,), (), (IMAGE,)]
    inputs = general.inputs([general.group(refs, i % 2) for i, refs in enumerate(media)])
    cut = micro_batches(inputs, 10_000)
    rows = sorted([row for b in cut for row in b.rows.tolist()])
    assert rows == list(range(sum(len(g.completions) for g in inputs)))
    assert len(cut) == 2
    assert all(len({bool(g.arguments.get("pixel_values") is not None) for g in b.groups}) == 1
               for b in cut)  # fmt: skip


def test_packing_computes_a_prompt_once():
    """The tokens that go through the layers are those of one prompt and of its completions."""
    model = LlamaForCausalLM(tiny(LlamaConfig))
    admit(model, Verdict("packed"))
    seen = []
    model.model.layers[0].register_forward_pre_hook(lambda m, a: seen.append(a[0].shape[:2]))
    shared_states(model, [group(20, (5, 5, 5, 5))])
    unshared_states(model, [group(20, (5, 5, 5, 5))])
    assert seen == [(1, 20 + 4 * 4), (4, 25)]


def tiny(config_class, **more):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 128}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return config_class(**{**sizes, **heads, **ids, **more})


# ---- the probe ----


FAULTS = {
    "a window is dropped": ("gpt_oss", masks, "_group_mask",
        lambda own: lambda rule, rows, places: own(causal_mask_function, rows, places)),
    "sinks are dropped": ("gpt_oss", attention, "_attend",
        lambda own: lambda *a, **k: own(*a, **{**k, "sinks": None})),
    "a soft cap is dropped": ("gemma2", attention, "_attend",
        lambda own: lambda *a, **k: own(*a, **{**k, "softcap": None})),
    "positions continue too late": ("gpt_oss", SharedLayout, "of",
        lambda own: lambda *given: later(own(*given))),
    "a state runs on": ("qwen3_next", recurrent, "_scanned", lambda own: run_on),
    "a convolution begins anew": ("lfm2", recurrent, "pad",
        lambda own: lambda prompt, ends: own(torch.zeros_like(prompt), ends)),
}  # fmt: skip


def later(layout: SharedLayout) -> SharedLayout:
    layout.places[layout.groups[0].suffixes] += 1
    return layout


def run_on(layout, inputs, scan):
    return scan(inputs, None, False)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_probe_finds_a_wrong_forward(fault, monkeypatch):
    name, owner, attribute, wrong = FAULTS[fault]
    right = probe(*of_type(name))
    assert right.status == "packed"
    assert right.logprob_gap < 1e-5
    monkeypatch.setattr(owner, attribute, wrong(getattr(owner, attribute)))
    verdict = probe(*of_type(name))
    assert verdict.status == "padded"
    assert verdict.logprob_gap > 2e-4
    assert "differ by" in verdict.why


def test_a_model_whose_tokens_see_later_ones_is_refused():
    """PaliGemma's own forward lets SDPA see the future where no row is padded."""
    config = CONFIG_MAPPING["paligemma"]()
    verdict = probe(transformers.PaliGemmaForConditionalGeneration, config)
    assert verdict.status == "refused"
    assert "sees those that follow it" in verdict.why


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bloom", "compute with the mask themselves"),
        ("deepseek_v32", "computes otherwise"),
        ("zaya", "differ by"),
        ("mamba2", "carry a state"),
        ("bert", "see"),
    ],
)
def test_what_cannot_be_shared_is_padded_and_says_why(name, why):
    """Zaya calls every layer once and is wrong: only numbers tell."""
    model_class = AutoModelForCausalLM._model_mapping[type(CONFIG_MAPPING[name]())]
    verdict = probe(model_class, CONFIG_MAPPING[name]())
    assert verdict.status != "packed"
    assert why in verdict.why


def test_a_verdict_is_kept_by_class_and_configuration(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    general, probes = GENERAL["idefics3"], []
    monkeypatch.setattr(sharing, "probe", lambda *a: probes.append(a) or probe(*a))
    for _ in range(2):
        model = general.model()
        sharing.settle(model, general.family, "auto", "m")
        assert verdict_of(model).status == "packed"
    assert len(probes) == 1
    other = general.model()
    other.config.text_config.rms_norm_eps = 1e-4
    sharing.settle(other, general.family, "auto", "m")
    assert len(probes) == 2


def test_sharing_is_what_the_configuration_asks_for(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    general = GENERAL["idefics3"]
    model = general.model()
    sharing.settle(model, general.family, "padded", "m")
    assert verdict_of(model) is None
    refusal = Verdict("padded", "its heads are odd")
    monkeypatch.setattr(sharing, "verdict_on", lambda *a: refusal)
    logging.getLogger("mmr1").propagate = True
    with caplog.at_level(logging.WARNING, "mmr1"):
        sharing.settle(model, general.family, "auto", "m")
    assert verdict_of(model) is None
    assert "m: completions do not share their prompt: its heads are odd" in caplog.text
    with pytest.raises(ValueError, match=r"sharing=packed and m: its heads are odd"):
        sharing.settle(model, general.family, "packed", "m")
    monkeypatch.setattr(sharing, "verdict_on", lambda *a: Verdict("refused", "it sees"))
    with pytest.raises(ValueError, match=r"m: it sees; .* cannot be trained on completions"):
        sharing.settle(model, general.family, "padded", "m")


def test_a_layer_that_was_not_called_is_an_error():
    model = LlamaForCausalLM(tiny(LlamaConfig))
    admit(model, Verdict("packed", calls={"LlamaAttention": 1}))
    shared_states(model, [group(5, (3, 4))])
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(
        PrefixSharingError, match=r"called \{'LlamaAttention': 1\} times in place of"
    ):
        shared_states(model, [group(5, (3, 4))])


# ---- masks ----


def test_a_rule_holds_at_the_places_of_each_group():
    """A window of 4, by hand."""
    model = LlamaForCausalLM(tiny(LlamaConfig))
    layout = SharedLayout.of(pack([group(6, (4, 3)), group(3, (2, 5))], (), model.device))
    rule = sliding_window_causal_mask_function(4)
    for rows, prompt, longest in zip(layout.groups, (6, 3), (3, 4), strict=True):
        mask = masks._group_mask(rule, rows, layout.places)
        place = torch.arange(prompt + longest)
        wanted = (place[None] <= place[:, None]) & (place[None] > place[:, None] - 4)
        assert mask.prompt is None if prompt <= 4 else torch.equal(
            mask.prompt, wanted[:prompt, :prompt])  # fmt: skip
        assert torch.equal(mask.suffix, wanted[prompt:])


def test_a_model_that_computes_with_its_mask_is_told():
    model = LlamaForCausalLM(tiny(LlamaConfig))
    install(model)
    groups = [group(5, (3, 4))]
    packed = pack(groups, (), model.device)
    found = []
    model.model.layers[0].register_forward_pre_hook(
        lambda m, a, k: found.append(k["attention_mask"]), with_kwargs=True
    )
    run_packed(model, packed, groups, model)
    mask = found[0]
    assert mask.shape == (1, 1, 10, 10)
    assert mask[:, :, :3].to("cpu") is mask
    with pytest.raises(PrefixSharingError, match="compute with the mask"):
        mask + torch.zeros(10, 10)


# ---- what was wrong in other forwards ----


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_lengths_on_both_sides_of_what_turns_rotary_angles_are_refused(kind, packed):
    """Off by up to 0.1 nats otherwise, since a forward has one set of angles."""
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [3.0] * 8}
        rope["original_max_position_embeddings"] = 32
    more = {"rope_parameters": rope, "max_position_embeddings": 32 if kind == "dynamic" else 128}
    model = AutoModelForCausalLM.from_config(tiny(LlamaConfig, **more))
    if packed:
        admit(model, Verdict("packed"))
    short = [group(20, (6, 9))]
    alone = plain_scores(model, short, 1.0).logprobs
    model.config.model_type = "any"
    got = completion_scores(model, short).logprobs
    torch.testing.assert_close(got, alone, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match=rf"type '{kind}', and a sequence of 40 .* original 32"):
        completion_scores(model, [group(20, (6, 20))])
    with pytest.raises(ValueError, match=rf"type '{kind}', and a sequence of 60 .* original 32"):
        # A rank with early tokens alone would take the angles of short sequences.
        completion_scores(model, [group(40, (6, 20))], context=Context(0, 2, None))


def test_a_familys_attention_drops_no_sinks():
    """Without a layout it is SDPA's, which has none."""
    config = tiny(GptOssConfig, head_dim=16, num_local_experts=2, num_experts_per_tok=1)
    model = AutoModelForCausalLM.from_config(config)
    model.config._attn_implementation = NAME
    with pytest.raises(ValueError, match="has a s_aux"):
        model(input_ids=tokens(5, 0)[None])
    plain = AutoModelForCausalLM.from_config(tiny(Qwen2Config))
    plain.config._attn_implementation = NAME
    plain(input_ids=tokens(5, 0)[None])


def test_soft_caps_are_computed_also_where_prompts_are_not_shared():
    """SDPA, which Gemma 2 takes by default, leaves them out."""
    capped = small("gemma2")
    assert capped.config._attn_implementation == "eager"
    dropped = copy.deepcopy(capped)
    dropped.get_decoder().set_attn_implementation("sdpa")
    gap = plain_scores(capped, GROUPS, 1.0).logprobs - plain_scores(dropped, GROUPS, 1.0).logprobs
    assert gap.abs().max() > 1e-4
    assert_same(
        capped,
        completion_scores(capped, GROUPS[:1]),
        plain_scores(capped, GROUPS[:1], 1.0),
    )
