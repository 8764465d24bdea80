"""Experts of a mixture: replayed, compared and balanced, against forwards and losses by hand."""

from __future__ import annotations

import copy
import sys
import types
from dataclasses import replace

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig

from mmr1.config import SamplingConfig
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.routers import Routing, route, watch_routers
from mmr1.trainer.forward.any_model.forward import admit, verdict_of
from mmr1.trainer.forward.any_model.sharing import probe, settle
from mmr1.trainer.forward.any_model.twin import twins
from mmr1.trainer.forward.routing import RouterUse, computed_tokens
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import GroupInput, ModelInputs
from mmr1.types import Message, Sample, TextPart
from mmr1.vision.prepare import MediaCache
from tests.asking import asks, completed
from tests.trainer.forward.any_models import group
from tests.trainer.forward.any_models import plain_scores as plain_texts
from tests.vision.families.general_family import GENERAL, IMAGE
from tests.vision.families.tiny_family import FAMILIES, plain_scores

MOE = FAMILIES["qwen3_vl_moe"]
REPLAY = RouterUse(compares=True, replays=True)
COMPARE = RouterUse(compares=True)


def mixtral(packs: bool = True):
    """A small Mixtral, which has no family, and whether its forward shares prompts."""
    own = transformers.MixtralForCausalLM, CONFIG_MAPPING["mixtral"]()
    model = next(twins(*own, reads=False))
    admit(model, probe(*own) if packs else None)
    assert (verdict_of(model) is not None) == packs
    return model


def with_experts(groups, layers: int, experts: int = 4, k: int = 2) -> list[GroupInput]:
    """The groups, as if an engine had chosen experts at random."""
    draw = torch.Generator().manual_seed(0)

    def chosen(tokens: int) -> torch.Tensor:
        scores = torch.rand(tokens, layers, experts, generator=draw)
        return scores.topk(k).indices.to(torch.uint8)

    return [
        replace(
            g,
            experts=(chosen(len(g.prompt_ids)), tuple(chosen(len(r) - 1) for r in g.completions)),
        )
        for g in groups
    ]


def decided(model, chosen: torch.Tensor):
    """A copy of the model with routers by hand: ``[T, L, k]`` experts, a softmax over those."""
    model = copy.deepcopy(model)
    blocks = [layer.mlp for layer in model.get_decoder().layers]
    for layer, block in enumerate(blocks):

        def forward(self, states, layer=layer):
            logits = torch.nn.functional.linear(states.reshape(-1, states.shape[-1]), self.weight)
            fed = chosen[: len(logits), layer].long()
            of_chosen = torch.stack([logits[t, fed[t]] for t in range(len(fed))]).exp()
            return logits, of_chosen / of_chosen.sum(-1, keepdim=True), fed

        block.gate.forward = types.MethodType(forward, block.gate)
    return model


def by_hand(model, groups, plain):
    """Log-probs of each completion alone with its own prompt's and its own tokens' experts."""
    of_rows, found = [], {}
    for g in groups:
        for index in range(len(g.completions)):
            last = torch.zeros_like(g.experts[0][:1])  # the last token is not read
            chosen = torch.cat([g.experts[0], g.experts[1][index], last])
            fixed = decided(model, chosen)
            scores = plain(fixed, [g.select([index])], 0.7)
            scores.logprobs.sum().backward()
            for name, parameter in fixed.named_parameters():
                if parameter.grad is not None:
                    found[name] = found.get(name, 0) + parameter.grad
            of_rows.append(scores.logprobs[0])
    return torch.nn.utils.rnn.pad_sequence(of_rows, batch_first=True).detach(), found


GROUPS = {
    "family": lambda: [
        MOE.group([MOE.image(84, 64)], 11, [5, 9, 3], 1),
        MOE.group([], 9, [6], 2),
        MOE.group([], 4, [3, 7], 3),
    ],
    "general": lambda: [group(21, (6, 2, 12), 1), group(13, (7,), 3)],
    "padded": lambda: [group(21, (6, 2, 12), 1)],
}
MODELS = {
    "family": (MOE.model, plain_scores),
    "general": (mixtral, plain_texts),
    "padded": (lambda: mixtral(False), plain_texts),
}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("way", MODELS)
def test_replayed_experts_are_those_of_a_forward_with_them_fixed(way, checkpointing):
    make, plain = MODELS[way]
    model = make()
    groups = with_experts(GROUPS[way](), model.config.get_text_config().num_hidden_layers)
    logprobs, wanted = by_hand(model, groups, plain)
    watch_routers(model, "test")
    if checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    scores = completion_scores(model, groups, Distribution(0.7), routers=REPLAY)
    torch.testing.assert_close(scores.logprobs, logprobs, rtol=0, atol=1e-5)
    scores.logprobs.sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == wanted.keys()
    assert any("gate.weight" in name and wanted[name].abs().max() > 0.01 for name in wanted)
    for name, gradient in wanted.items():
        largest = max(1.0, gradient.abs().max().item())
        assert (found[name] - gradient).abs().max() < 1e-5 * largest, name
    own = completion_scores(model, groups, Distribution(0.7), routers=COMPARE)
    assert (own.logprobs - logprobs).abs().max() > 0.01  # by its own experts it differs
    assert own.expert_gap.max() == 1


def test_the_gap_is_that_of_the_choice_of_each_completion_alone():
    """By a hook on each router, at the token before the one that is predicted."""
    model = MOE.model()
    groups = with_experts(GROUPS["family"](), 2)
    alone = []
    for g in groups:
        for index, row in enumerate(g.completions):
            chosen = []
            plain = copy.deepcopy(model)
            for layer in plain.get_decoder().layers:
                layer.mlp.gate.register_forward_hook(
                    lambda _, __, out, to=chosen: to.append(out[2])
                )
            plain_scores(plain, [g.select([index])], 1.0)
            engine = torch.cat([g.experts[0], g.experts[1][index]])
            at = slice(len(g.prompt_ids) - 1, len(g.prompt_ids) + len(row) - 1)
            differ = [
                (of[at].sort(-1).values != engine[at, n].sort(-1).values).any(-1).tolist()
                for n, of in enumerate(chosen)
            ]
            alone.append(torch.tensor(differ).float().mean(0))
    watch_routers(model, "test")
    gap = completion_scores(model, groups, routers=COMPARE).expert_gap
    assert torch.equal(gap, torch.nn.utils.rnn.pad_sequence(alone, batch_first=True))
    assert 0 < gap[gap > 0].mean() < 1  # some layers agree


def perturbed(model):
    """A copy whose routers take the third and second best experts, with their own weights."""
    model = copy.deepcopy(model)
    for block in [x.mlp for x in model.get_decoder().layers if hasattr(x.mlp, "gate")]:

        def forward(self, states):
            logits = torch.nn.functional.linear(states.reshape(-1, states.shape[-1]), self.weight)
            # By one topk, which is what the engine reads.
            ranks = logits.argsort(-1).argsort(-1)
            third = (ranks == 1) | (ranks == 2)
            of, chosen = logits.masked_fill(~third, -1e9).topk(2)
            return logits, of.softmax(-1), chosen

        block.gate.forward = types.MethodType(forward, block.gate)
    return model


def moe_llava():
    """A LLaVA whose language model is a Qwen3-MoE: no family, pictures and experts."""
    config = AutoConfig.from_pretrained(GENERAL["llava"].folder)
    of_text = config.text_config.to_dict()
    kept = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings")  # fmt: skip
    config.text_config = CONFIG_MAPPING["qwen3_moe"](
        **{name: of_text[name] for name in kept if name in of_text},
        num_hidden_layers=3,
        mlp_only_layers=[1],  # of which one has no experts
        intermediate_size=64,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
    )
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "language_model" in name and weight.dim() > 1:
                weight.mul_(4)
    return model


def with_pictures(way: str):
    """A model with experts that takes pictures, its family first: how it shares is the way."""
    if way == "family":
        return MOE.family, MOE.model()
    family, model = GENERAL["llava"].family, moe_llava()
    if way == "general":
        settle(model, family, "packed", "model")
    return family, model


@pytest.mark.parametrize("way", ["family", "general", "padded"])
def test_by_replay_the_trainer_computes_what_the_engine_sampled_from(way):
    """The engine's routers choose otherwise. Prompts of different lengths, some with a picture."""
    family, model = with_pictures(way)
    media = MediaCache(family.prepare_media)
    texts = ((IMAGE, TextPart("What?")), (TextPart("Which of these digits is it?"),))
    prompts = [family.render_prompt(Sample("s", (Message("user", parts),))) for parts in texts]
    engine = HfEngine(perturbed(model), family, media, returns_experts=True)
    requests = [asks(prompts[0], 3, 1), asks(prompts[1], 2, 7)]
    sampling = SamplingConfig(temperature=0.7, max_tokens=9)
    groups = completed(engine, requests, sampling)
    watch_routers(model, "test")
    for inputs, group_ in zip(ModelInputs(family, media).of(groups), groups, strict=True):
        rows = [torch.from_numpy(c.logprobs) for c in group_.completions]
        sampled = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        common = ([inputs], Distribution(0.7, forbidden=family.forbidden_ids))
        scores = completion_scores(model, *common, routers=REPLAY)
        torch.testing.assert_close(scores.logprobs, sampled, rtol=0, atol=1e-5)
        assert scores.expert_gap[sampled != 0].min() > 0
        own = completion_scores(model, *common, routers=COMPARE)
        assert (own.logprobs - sampled).abs().max() > 1e-3
        assert own.expert_gap[sampled != 0].min() > 0


@pytest.mark.parametrize("way", ["family", "general", "padded"])
def test_an_engine_of_the_same_weights_chooses_the_same_experts(way):
    family, model = with_pictures(way)
    media = MediaCache(family.prepare_media)
    prompt = family.render_prompt(Sample("s", (Message("user", (IMAGE, TextPart("What?"))),)))
    engine = HfEngine(model, family, media, returns_experts=True)
    groups = completed(engine, [asks(prompt, 3, 1)], SamplingConfig(max_tokens=9))
    inputs = ModelInputs(family, media).of(groups)
    layers = model.config.get_text_config().num_hidden_layers
    assert all(c.routed_experts[0].shape[1:] == (layers, 2) for c in groups[0].completions)
    for use in (COMPARE, REPLAY):
        scores = completion_scores(
            model, inputs, Distribution(forbidden=family.forbidden_ids), routers=use
        )
        assert not scores.expert_gap.any()


BALANCE = RouterUse(balances=True)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("way", MODELS)
def test_the_load_balancing_loss_is_that_of_transformers(way, checkpointing):
    """On the same tokens: of a prompt once, of completions all but the last."""
    model, groups = MODELS[way][0](), GROUPS[way]()
    logits = [[] for _ in model.get_decoder().layers]
    plain = copy.deepcopy(model)
    for layer, of_layer in zip(plain.get_decoder().layers, logits, strict=True):
        layer.mlp.gate.register_forward_hook(lambda _, __, out, of=of_layer: of.append(out[0]))
    for g in groups:
        for index, row in enumerate(g.completions):
            MODELS[way][1](plain, [g.select([index])], 1.0)
            start = 0 if index == 0 else len(g.prompt_ids)
            for of_layer in logits:
                of_layer[-1] = of_layer[-1][start : len(g.prompt_ids) + len(row) - 1]
    module = sys.modules[type(plain).__module__]
    of_layers = tuple(torch.cat(of) for of in logits)
    wanted = module.load_balancing_loss_func(of_layers, 4, 2)
    assert len(of_layers[0]) == computed_tokens(groups)
    wanted.backward()
    gates = {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
    watch_routers(model, "test")
    if checkpointing:
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    loss = completion_scores(model, groups, routers=BALANCE).router_loss
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-6)
    loss.backward()
    for name, gradient in gates.items():
        own = dict(model.named_parameters())[name].grad
        torch.testing.assert_close(own, gradient, rtol=1e-4, atol=1e-6)
    assert any("gate" in name and gradient.abs().max() > 1e-4 for name, gradient in gates.items())


def test_one_sequence_has_the_loss_of_the_model_itself():
    model, (g,) = mixtral(), [group(13, (7,), 3)]
    ids = torch.cat([g.prompt_ids, g.completions[0][:-1]])[None]
    wanted = copy.deepcopy(model)(input_ids=ids, output_router_logits=True).aux_loss
    watch_routers(model, "test")
    loss = completion_scores(model, [g], routers=BALANCE).router_loss
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-6)


def test_models_without_experts_are_refused():
    with pytest.raises(ValueError, match=r"router_replay=R3, and Qwen3.* has no mixtures"):
        watch_routers(FAMILIES["qwen3"].model(), "algorithm.router_replay=R3")


def test_a_router_that_chooses_otherwise_is_refused():
    """Phi-MoE takes experts one after the other, by their largest score."""
    model = next(twins(transformers.PhimoeForCausalLM, CONFIG_MAPPING["phimoe"](), reads=False))
    watch_routers(model, "test")
    with pytest.raises(ValueError, match="does not choose experts by one topk"):
        completion_scores(model, [group(5, (3,), 1)], routers=COMPARE)


def test_another_number_of_tokens_than_the_engine_read_is_refused():
    model = mixtral()
    (g,) = with_experts([group(13, (7, 4), 3)], model.config.num_hidden_layers)
    watch_routers(model, "test")
    shorter = replace(g, experts=(g.experts[0][1:], g.experts[1]))
    with pytest.raises(ValueError, match="the engine chose experts"):
        completion_scores(model, [shorter], routers=REPLAY)


CHOOSE = ("mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "gpt_oss", "deepseek_v3", "glm4_moe",
          "ernie4_5_moe", "granitemoe", "qwen3_next")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOOSE)
def test_routers_of_many_models_are_followed(name):
    """Replaying its own choice changes nothing, and another's does."""
    own = transformers.AutoModelForCausalLM._model_mapping[type(CONFIG_MAPPING[name]())]
    model = next(twins(own, CONFIG_MAPPING[name](), reads=False))
    groups = [group(13, (7,), 3)]
    routers = watch_routers(model, "test")
    plain = completion_scores(model, groups).logprobs
    routing = Routing()
    route(model, routing)
    ids = torch.cat([groups[0].prompt_ids, groups[0].completions[0]])[None]
    model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    (chosen,) = routing.chosen(routers.layers)
    kept = replace(groups[0], experts=(chosen[:13], (chosen[13:-1],)))
    scores = completion_scores(model, [kept], routers=REPLAY)
    torch.testing.assert_close(scores.logprobs, plain, rtol=0, atol=1e-5)
    assert not scores.expert_gap.any()
    moved = replace(kept, experts=(chosen[:13], ((chosen[13:-1] + 1) % routers.experts,)))
    other = completion_scores(model, [moved], routers=REPLAY)
    assert (other.logprobs - plain).abs().max() > 1e-3
    assert other.expert_gap.max() > 0
