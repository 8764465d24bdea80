"""Models without a family, their groups, and their plain scores."""

from __future__ import annotations

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mmr1.trainer.forward.any_model.twin import twins
from mmr1.trainer.forward.sequences import GroupInput, TokenScores

# With pictures: Idefics3, LLaVA-OneVision, InternVL, Gemma 3, GLM-4.1V and Qwen3.5 in
# tests/vision/families/test_general.py. These are texts:
ARCHITECTURES = {
    "gpt_oss": "GptOssForCausalLM",  # experts, windows, sinks
    "qwen3_next": "Qwen3NextForCausalLM",  # gated delta rule, experts
    "gemma2": "Gemma2ForCausalLM",  # soft caps, windows
    "exaone4": "Exaone4ForCausalLM",  # windows, layers without positions
    "lfm2": "Lfm2ForCausalLM",  # short convolutions
    "olmo_hybrid": "OlmoHybridForCausalLM",  # gated delta rule
    "deepseek_v3": "DeepseekV3ForCausalLM",  # values narrower than keys
    "mixtral": "MixtralForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
}


def of_type(name: str):
    """Class and configuration."""
    config = CONFIG_MAPPING[name]()
    if name == "lfm2":  # by default all of its layers are attention
        config.layer_types = ["conv", "full_attention"]
    return getattr(transformers, ARCHITECTURES[name]), config


def small(name: str):
    model = next(twins(*of_type(name), reads=False))
    if name == "gemma2":  # its final soft cap is not a matter of sharing, and a head is plain
        model.config.final_logit_softcapping = None
    return model


def tokens(count: int, seed: int) -> torch.Tensor:
    return torch.randint(5, 100, (count,), generator=torch.Generator().manual_seed(seed))


def group(prompt: int, completions: tuple[int, ...], seed: int = 0) -> GroupInput:
    rows = tuple(tokens(n, 10 * seed + i) for i, n in enumerate(completions))
    positions = torch.arange(prompt)[None]
    return GroupInput(tokens(prompt, 99 - seed), positions, prompt, (), rows)


# The longest completion last, first, alone; a prompt within a window and one beyond it.
GROUPS = [group(21, (6, 2, 12), 1), group(4, (9, 1), 2), group(13, (7,), 3)]


def plain_scores(model, groups, temperature) -> TokenScores:
    """Each completion alone through the model's own forward."""
    rows = [(g.prompt_ids, row) for g in groups for row in g.completions]
    width = max(len(row) for _, row in rows)
    logprobs, entropies = [], []
    for prompt, row in rows:
        ids = torch.cat([prompt, row])[None]
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
        distribution = (logits[0, -len(row) - 1 : -1] / temperature).log_softmax(-1)
        value = distribution.gather(-1, row[:, None])[:, 0]
        entropy = -(distribution.exp() * distribution).sum(-1)
        for values, found in ((logprobs, value), (entropies, entropy)):
            values.append(torch.nn.functional.pad(found, (0, width - len(row))))
    return TokenScores(torch.stack(logprobs), torch.stack(entropies))
