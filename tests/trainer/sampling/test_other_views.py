"""A share of a group under another view: how it is sampled, compared, and learned from."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmr1.config import AlgorithmConfig, Config, SamplingConfig, ViewsConfig
from mmr1.config.file import load_config
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.sampling.codec import decoded, encoded
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.sampling.open_groups import OpenGroup
from mmr1.trainer.sampling.other_views import by_own_view, view_stats
from mmr1.trainer.sampling.plan import planner
from mmr1.trainer.sampling.views import under
from mmr1.trainer.train import run_training
from mmr1.types import RolloutGroup, ScoredGroup
from mmr1.vision.views import view_options
from tests.asking import asks, completed
from tests.jsonl import read_jsonl
from tests.padded_forward import padded_scores
from tests.trainer.models.policies import assert_close, policy
from tests.trainer.resumption import assert_resumes_to_the_same_bits, rl
from tests.trainer.tiny_groups import new_model

NOISE = ViewsConfig(view="noise", strength=0.5)
OPTIONS = {"noise": 0.4, "noise_seed": 7}


def test_the_last_completions_of_a_group_see_the_view(digit_samples, parts):
    family, _, media, _ = parts
    engine = HfEngine(new_model(), family, media)
    text = replace(family.render_prompt(digit_samples[1]), shown=(), token_ids=(9, 8))
    prompt = family.render_prompt(digit_samples[0])
    rollout = {"n": 5, "max_response_length": 8, "views": {"view": "noise", "strength": 0.3}}
    plan = planner(Config(model={"path": "any"}, rollout=rollout), greedy=False)
    drawn = [OpenGroup(1, p, s, plan(1, p, s)) for p, s in ((prompt, 100), (text, 200))]
    for group in drawn:
        for places, request in group.missing("group"):
            engine.submit([request])
            group.ended |= {places[ended.index]: ended for ended in engine.poll()}
    assert all(group.is_whole for group in drawn)
    seen, unseen = (group.group for group in drawn)
    sampling = SamplingConfig(max_tokens=8)
    plain = completed(engine, [asks(prompt, 5, 100), asks(text, 5, 200)], sampling)
    options = {"noise": 0.3, "noise_seed": 100}
    assert [dict(c.view) for c in seen.completions] == [{}, {}, {}, options, options]
    assert seen.prompt is prompt
    logprobs = [c.logprobs.tolist() for c in seen.completions]
    assert logprobs[:3] == [pytest.approx(c.logprobs, abs=1e-6) for c in plain[0].completions[:3]]
    (other,) = completed(engine, [asks(under(prompt, options), 2, 103)], sampling)
    assert logprobs[3:] == [pytest.approx(c.logprobs, abs=1e-6) for c in other.completions]
    assert logprobs[3:] != [pytest.approx(c.logprobs, abs=1e-4) for c in plain[0].completions[3:]]
    assert [c.text for c in unseen.completions] == [c.text for c in plain[1].completions]
    assert not any(c.view for c in unseen.completions)


@pytest.fixture(scope="module")
def noisy(parts) -> list[ScoredGroup]:
    """The last two completions of each group of four saw a picture with noise."""

    def half(scored: ScoredGroup) -> ScoredGroup:
        first, last = scored.group.completions[:2], scored.group.completions[2:]
        completions = (*first, *(replace(c, view=OPTIONS) for c in last))
        return replace(scored, group=replace(scored.group, completions=completions))

    return [half(scored) for scored in parts[3]]


def gradients(
    parts, config: AlgorithmConfig, scored, own_views=None
) -> tuple[Any, dict[str, float]]:
    own, model = policy(parts, config, 10_000)
    caught: dict[str, torch.Tensor] = {}

    def step() -> dict[str, float]:
        caught.update({n: p.grad.clone() for n, p in model.named_parameters()})
        return {"grad_norm": 0.0, "lr": 0.0}

    own.optimizer.step = step
    algorithm = build_algorithm(config, own_views=own_views)
    return caught, own.update(build_experience(scored, algorithm, Models(own)))


def naive(parts, scored, prompts) -> Any:
    """By autograd, with GRPO's advantages of whole groups; each row has a prompt of its own."""
    family, model, media, _ = parts
    own, loss, tokens = copy.deepcopy(model), torch.zeros(()), 0
    for group, of_rows in zip(scored, prompts, strict=True):
        rewards = torch.tensor([r.value for r in group.rewards])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        rows = group.group.completions
        for row, prompt, advantage in zip(rows, of_rows, advantages, strict=True):
            alone = group_input(family, media, RolloutGroup(prompt, (row,)))
            logprobs = padded_scores(
                own, [alone], Distribution(forbidden=family.forbidden_ids)
            ).logprobs
            loss, tokens = loss - advantage * logprobs.sum(), tokens + len(row.token_ids)
    (loss / tokens).backward()
    return {n: p.grad for n, p in own.named_parameters()}


def test_the_loss_reads_all_completions_under_the_clean_view(parts, noisy):
    clean = [[s.group.prompt] * 4 for s in noisy]
    # The engine's log-probs of -6 would be weights far from 1.
    config = AlgorithmConfig(rollout_correction={"importance_sampling": {"level": "token"}})
    other = [
        ScoredGroup(RolloutGroup(s.group.prompt, s.group.completions[2:]), s.rewards[2:])
        for s in noisy
    ]
    expected = naive(parts, noisy, clean)
    without = AlgorithmConfig(rollout_correction={"importance_sampling": None})
    found, _ = gradients(parts, without, noisy)
    assert_close(found, expected)
    assert max(g.abs().max() for g in expected.values()) > 1e-3
    _, stats = gradients(parts, config, other)  # all of them under noise: no weight is another
    assert "rollout/importance_weight_mean" not in stats
    assert "rollout/logprob_diff_mean" not in stats
    assert stats["views/logprob_diff_mean"] > 0
    weighted, _ = gradients(parts, config, other)
    plain, _ = gradients(parts, without, other)
    assert_close(weighted, plain, 1e-7)


def test_the_gap_of_the_engine_is_that_of_the_clean_completions(parts, noisy):
    family, model, media, scored = parts
    read = PackedModel(
        model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 10_000
    )
    config = AlgorithmConfig(entropy={"coef": 0.01})  # so that all groups take part
    _, stats = gradients(parts, config, noisy)
    gaps: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    rows = iter(read.logprobs([s.group for s in scored]))
    for completion in (c for s in noisy for c in s.group.completions):
        logprobs = next(rows)[: len(completion.token_ids)]
        gaps[bool(completion.view)].append((logprobs + 6).abs())  # the engine said -6
    means = {seen: float(torch.cat(values).mean()) for seen, values in gaps.items()}
    assert stats["rollout/logprob_diff_mean"] == pytest.approx(means[False], rel=1e-5)
    assert stats["views/logprob_diff_mean"] == pytest.approx(means[True], rel=1e-5)


def test_the_loss_reads_each_completion_under_its_own_view(parts, noisy):
    shown = by_own_view(noisy)
    assert [len(s.group.completions) for s in shown] == [2] * 6
    assert [r.value for s in shown for r in s.rewards] == [
        r.value for s in noisy for r in s.rewards
    ]
    viewed = [[s.group.prompt] * 2 + [under(s.group.prompt, OPTIONS)] * 2 for s in noisy]
    without = AlgorithmConfig(rollout_correction={"importance_sampling": None})
    found, stats = gradients(parts, without, noisy, by_own_view)
    assert_close(found, naive(parts, noisy, viewed))
    assert "views/logprob_diff_mean" not in stats  # the engine saw what the policy sees
    clean, _ = gradients(parts, without, noisy)
    assert max((clean[n] - g).abs().max() for n, g in found.items()) > 1e-4


def test_before_several_updates_log_probs_are_those_of_the_view_of_the_loss(parts, noisy):
    family, model, media, _ = parts
    read = PackedModel(
        model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 10_000
    )
    algorithm = build_algorithm(AlgorithmConfig(ppo_epochs=2))
    clean = build_experience(noisy, algorithm, Models(read)).tokens
    own_views = replace(algorithm, own_views=by_own_view)
    own = build_experience(noisy, own_views, Models(read)).tokens
    for tokens, options in ((clean, {}), (own, OPTIONS)):
        for number, group in enumerate(s.group for s in noisy):
            last = RolloutGroup(under(group.prompt, options), group.completions[2:])
            expected = read.logprobs([last])
            rows = tokens.old_logprobs[4 * number + 2 : 4 * number + 4, : expected.shape[1]]
            torch.testing.assert_close(rows, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(clean.advantages, own.advantages, rtol=0, atol=0)
    assert clean.other_view.any(1).tolist() == [False, False, True, True] * 3
    assert own.other_view is None


def test_rewards_are_counted_by_view(noisy):
    # REWARDS: .5 .5 | 1 1 | 0 .5 under noise, 1.5 0 | 1 1 | 0 1.5 without
    stats = view_stats(noisy)
    assert stats == {
        "views/reward_clean": pytest.approx(5 / 6),
        "views/reward_perturbed": pytest.approx(3.5 / 6),
    }


def test_a_kept_group_still_knows_what_was_seen(noisy):
    completions = decoded(encoded(noisy[0].group.completions))
    assert [dict(c.view) for c in completions] == [{}, {}, OPTIONS, OPTIONS]


REWARD = "def reward(completion: str, answer) -> float:\n    return float(len(completion) % 2)\n"


def run(tiny_model, digits, tmp_path, name: str, *more: str) -> None:
    (tmp_path / "own.py").write_text(REWARD)
    records = f"data.train={digits}/rl.jsonl"
    overrides = [
        f"model.path={tiny_model}",
        "model.dtype=float32",
        *([] if any(key.startswith("data.train=") for key in more) else [records]),
        "data.train_batch_size=3",
        *("rollout.engine=hf", "rollout.n=4", "rollout.max_response_length=8"),
        "rollout.max_prompt_length=104",
        f"rewards={{own: {{type: '{tmp_path}/own.py:reward', sandbox: null}}}}",
        "optimizer.lr=1e-3",
        *("trainer.threads=1", "trainer.log_completions_steps=1"),
        "trainer.checkpoints.save_steps=2",
        f"trainer.output_dir={tmp_path}/{name}",
        *more,
    ]
    run_training(load_config(None, overrides))


@pytest.mark.slow
def test_a_run_resumes_to_the_same_bits(tiny_model, digits, reward, tmp_path):
    """With earlier groups that are replayed, which know what they saw."""
    views = {"view": "noise", "strength": 0.5, "annealing": {"midpoint": 0.5, "steepness": 4}}

    def config(out: str) -> Config:
        return rl(tiny_model, digits, reward, tmp_path / out).changed({"rollout.views": views})

    assert_resumes_to_the_same_bits(config, tmp_path)
    rows = read_jsonl(tmp_path / "whole/metrics.jsonl")
    # 0.5 * (1 - sigmoid(4 * (step / 5 - 1 / 2)))
    expected = [0.5 * share for share in (0.7685248, 0.5986877, 0.4013123, 0.2314752, 0.1192029)]
    assert [row["views/strength"] for row in rows] == pytest.approx(expected)
    groups = read_jsonl(tmp_path / "whole/rollouts/step_000001.jsonl")
    seen = [c.get("view", {}).get("noise") for g in groups for c in g["completions"]]
    assert seen == [None, None, pytest.approx(expected[0])] * 2  # one of three


@pytest.mark.parametrize("loss", ["own", "clean"])
def test_a_run_with_several_updates_and_perception(loss, tiny_model, digits, tmp_path):
    views = f"rollout.views={{view: crop, strength: 0.5, loss: {loss}}}"
    more = ("algorithm.ppo_epochs=2", "algorithm.perception.coef=0.1", "trainer.vision_use_steps=2")
    run(tiny_model, digits, tmp_path, "run", views, "trainer.max_steps=2", *more)
    rows = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert all(("views/logprob_diff_mean" in row) == (loss == "clean") for row in rows)
    assert all(row["rollout/logprob_diff_mean"] < 1e-4 for row in rows)  # the same model samples
    assert "vision/blank" in rows[1]


def test_an_evaluation_also_decodes_under_views(tiny_model, digits, tmp_path):
    held_out = f"trainer.validation={{data: '{digits}/rl.jsonl'}}"
    views = ("eval.views={noise: 0.9, blank: null}", "eval.limit=4", "trainer.max_steps=1")
    run(tiny_model, digits, tmp_path, "run", held_out, *views)
    completions = read_jsonl(tmp_path / "run/eval/completions.jsonl")
    modes = ["greedy", "sampled", "greedy_noise", "greedy_blank"]
    assert [row["mode"] for row in completions] == [mode for mode in modes for _ in range(4)]
    texts = {mode: [r["completion"] for r in completions if r["mode"] == mode] for mode in modes}
    assert texts["greedy_blank"] != texts["greedy"] != texts["greedy_noise"]


def test_data_that_a_view_does_not_change(tiny_model, digits, tmp_path, caplog):
    turns = [{"role": "user", "content": "2 + 2"}]
    rows = [{"version": 1, "id": f"{i}", "messages": turns, "answer": "4"} for i in range(3)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = (f"data.train={tmp_path}/text.jsonl", "rollout.views={view: noise, strength: 0.5}")
    with pytest.raises(ValueError, match=r"rollout\.views: the view noise, and no sample of"):
        run(tiny_model, digits, tmp_path, "text", *given)
    held_out = f"trainer.validation={{data: '{tmp_path}/text.jsonl'}}"
    with pytest.raises(ValueError, match=r"eval\.views: the view blank, and no sample of .*text"):
        run(tiny_model, digits, tmp_path, "text", held_out, "eval.views={blank: null}")
    mixed = f"data.train={{'{digits}/rl.jsonl': 1, '{tmp_path}/text.jsonl': 1}}"
    with caplog.at_level("INFO"):
        run(tiny_model, digits, tmp_path, "mixed", mixed, given[1], "trainer.max_steps=1")
    assert "samples of data.train are without an image or a video" in caplog.text


def test_options_of_a_view_reach_the_pixels(digit_samples, parts):
    family = parts[0]
    prompt = family.render_prompt(digit_samples[0])
    clean = family.prepare_media(prompt.media[0])
    for view in ("noise", "crop", "mask", "resolution", "blank"):
        other = family.prepare_media(under(prompt, view_options(view, 0.5, 3)).media[0])
        assert other.grid == clean.grid
        assert not torch.equal(other.patches, clean.patches)
        assert other.digest != clean.digest
    assert under(prompt, view_options("shuffle", 1, 3)).media == prompt.media
