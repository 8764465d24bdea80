"""Supervised fine-tuning on the prompt's text too."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import yaml

from mmr1.config import Config, OptimizerConfig
from mmr1.config.commands import optional_sections
from mmr1.config.file import read_written
from mmr1.data.responses import group_of_responses
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.sequences import ModelInputs, completion_mask
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.sft import run_sft, sft_step, with_prompt_learned
from mmr1.types import Message, Sample, TextPart
from tests.jsonl import read_jsonl
from tests.trainer.run_configs import config_of


def demonstrations(parts):
    """Two pictures and a text, each with an answer."""
    family, _, _, scored = parts
    text = Sample("text", (Message("user", (TextPart("What is 1 + 1?"),)),))
    prompts = [scored[0].group.prompt, scored[1].group.prompt, family.render_prompt(text)]
    return [
        group_of_responses(family, prompt, [answer])
        for prompt, answer in zip(prompts, ("It is seven.", "2", "<answer>2</answer>"), strict=True)
    ]


def transformers_loss(parts, groups) -> torch.Tensor:
    """Of transformers' own forward, by the labels of a collator that masks placeholders."""
    family, model, media, _ = parts
    sums, count = torch.zeros(()), 0
    never = torch.tensor(family.forbidden_ids)
    for group in groups:
        prepared = [media[medium] for medium in group.prompt.media]
        prompt = family.expand_placeholders(group.prompt.token_ids, prepared)
        ids = torch.tensor([[*prompt, *group.completions[0].token_ids.tolist()]])
        pictures = family.engine_inputs(prepared)
        arguments = {name: given.values for name, given in pictures.items()}
        arguments["mm_token_type_ids"] = (ids == family.image_id).int()  # for M-RoPE
        logits = model(input_ids=ids, **arguments).logits[0, :-1].float()
        logits[:, never] = -torch.inf
        labels = ids[0, 1:]
        learned = ~torch.isin(labels, never)
        logprobs = logits.log_softmax(-1).gather(1, labels[:, None])[:, 0]
        sums = sums - logprobs[learned].sum()
        count += int(learned.sum())
    return sums / count


def test_the_loss_is_transformers_over_prompt_and_answer(parts):
    family, model, media, _ = parts
    own = [with_prompt_learned(family, group, media) for group in demonstrations(parts)]
    expected = transformers_loss(parts, demonstrations(parts))
    packed = PackedModel(
        model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 10_000
    )
    mask = completion_mask(own)
    logprobs = packed.logprobs(own)
    assert float(-logprobs[mask].mean()) == pytest.approx(expected.item(), abs=1e-5)
    text = own[2].completions[0]
    assert int(mask[2].sum()) == len(text.token_ids)  # no placeholder in it
    assert len(text.token_ids) > len(demonstrations(parts)[2].completions[0].token_ids) + 5


def test_its_gradient_is_transformers_too(parts):
    family, model, media, _ = parts
    groups = demonstrations(parts)
    own = deepcopy(model)
    packed = PackedModel(
        own, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 60
    )  # several micro-batches
    optimizer = Optimizer(own, OptimizerConfig(lr=1e-9), 1)
    seen = {}
    step = optimizer.step
    optimizer.step = lambda: (
        seen.update({n: p.grad.clone() for n, p in own.named_parameters() if p.grad is not None})
        or step()
    )
    sft_step(packed, optimizer, [with_prompt_learned(family, group, media) for group in groups])
    other = deepcopy(model)
    other.zero_grad()
    transformers_loss((family, other, media, None), groups).backward()
    for name, parameter in other.named_parameters():
        if parameter.grad is not None:
            error = (seen[name] - parameter.grad).norm() / parameter.grad.norm()
            assert float(error) < 1e-4, name


def test_a_prompt_with_media_needs_a_family_that_shares_prompts(parts, monkeypatch):
    family, _, media, _ = parts
    monkeypatch.setattr(type(family), "shares_prompts", False)
    group = demonstrations(parts)[0]
    with pytest.raises(ValueError, match=r"completion_only_loss=false: sample .* shares prompts"):
        with_prompt_learned(family, group, media)


def test_a_run_learns_the_prompt_where_it_is_asked_to(tiny_model, digits, tmp_path):
    def first(name: str, *keys: str) -> dict[str, float]:
        every = ("data.train_batch_size=2", "trainer.max_steps=1", *keys)
        data = digits / "sft.jsonl"
        config = config_of(tiny_model, data, digits, tmp_path / name, *every, command="sft")
        run_sft(config)
        return read_jsonl(tmp_path / name / "metrics.jsonl")[0]

    answer, both = first("answer"), first("both", "sft.completion_only_loss=false")
    assert both["tokens/completion"] > answer["tokens/completion"] + 20
    assert both["loss"] != answer["loss"]


def test_a_run_from_python_writes_the_sections_of_its_command(tiny_model, digits, tmp_path):
    """Whatever command the configuration was made for; ``eval.limit`` is none of its keys."""
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        data={"train": str(digits / "sft.jsonl"), "train_batch_size": 2},
        trainer={"max_steps": 1, "output_dir": str(tmp_path / "run"), "threads": 1},
        eval={"limit": 3},
    )
    assert config.command == "train"
    run_sft(config)
    written = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert set(optional_sections()) & set(written) == {"sft", "environment"}
    assert read_written(tmp_path / "run/config.yaml").command == "sft"
