"""Experts of a mixture: replayed, compared and balanced, against forwards and losses by hand."""

from __future__ import annotations

import copy
import types

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING

from mmr1.config import SamplingConfig
from mmr1.rollout.engine import Request
from mmr1.rollout.hf import HfEngine
from mmr1.routers import watch_routers
from mmr1.trainer.forward.any_model.forward import Verdict, admit, verdict_of
from mmr1.trainer.forward.any_model.sharing import probe
from mmr1.trainer.forward.routing import RouterUse, computed_tokens
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import GroupInput, ModelInputs
from mmr1.trainer.forward.any_model.twin import twins
from mmr1.types import Message, MediaRef, Prompt, Sample, TextPart
from mmr1.vision.prepare import MediaCache
from tests.trainer.forward.test_any_model import group
from tests.trainer.forward.test_any_model import plain_scores as plain_texts
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
        GroupInput(
            **{name: getattr(g, name) for name in GroupInput.__dataclass_fields__ if name != "experts"},
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
        for index, row in enumerate(g.completions):
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
    scores = completion_scores(model, groups, 0.7, routers=REPLAY)
    torch.testing.assert_close(scores.logprobs, logprobs, rtol=0, atol=1e-5)
    scores.logprobs.sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == wanted.keys()
    assert any("gate.weight" in name and wanted[name].abs().max() > 0.01 for name in wanted)
    for name, gradient in wanted.items():
        largest = max(1.0, gradient.abs().max().item())
        assert (found[name] - gradient).abs().max() < 1e-5 * largest, name
    own = completion_scores(model, groups, 0.7, routers=COMPARE)
    assert (own.logprobs - logprobs).abs().max() > 0.01  # by its own experts it differs
    assert own.expert_gap.max() == 1
