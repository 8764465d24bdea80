"""The split of GPUs into ranks and engines, against FLOPs that torch counts and a plain search."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForImageTextToText

from mmr1.config import Config
from mmr1.estimate.gpu_split import Machine, Step, best_split, colocated_split, split
from mmr1.estimate.load import Load
from mmr1.estimate.shapes import read_shapes
from mmr1.trainer.forward.padded import padded_scores
from mmr1.vision.families.family import ModelShape, StackShape
from mmr1.vision.families.tiny import new_model
from tests.trainer.tiny_groups import group, image

# Published shapes of Qwen2.5-VL-7B.
LANGUAGE = StackShape(28, 3584, 18944, queries=3584, keys=512, heads=28)
TOWER = StackShape(32, 1280, 3420, queries=1280, keys=1280, heads=16, rows_per_token=4)
SEVEN_B = Step(ModelShape(LANGUAGE, TOWER), 8.29e9, 151_936, 64, 8, Load(1124, 1024, 512))
FREE_SYNC = Machine(host=float("inf"))


def test_flops_of_a_group_are_those_that_torch_counts(tmp_path):
    """A prompt for each of its completions: then torch's padded forward does the same work."""
    new_model(tmp_path / "20m", "20m")
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "20m", dtype=torch.float32)
    config = Config(model={"path": str(tmp_path / "20m"), "dtype": "float32"})
    shapes = read_shapes(config)
    one = group([image(280, 280, 0)], 20, [200], 0)
    load = Load(len(one.prompt_ids), sum(m.tokens for m in one.media), 200)
    with FlopCounterMode(display=False) as counter:
        padded_scores(model, [one], 1.0).logprobs.sum().backward()
    counted = counter.get_total_flops()
    step = Step(shapes.model, shapes.weights, shapes.vocabulary, 1, 1, load)
    assert step.group_flops == pytest.approx(counted, rel=0.15)


@pytest.mark.parametrize(
    ("ranks", "engines", "busy"), [(7, 1, 0.31), (5, 3, 0.50)], ids=["7+1", "5+3"]
)
def test_busy_shares_of_eight_gpus_in_turn(ranks, engines, busy):
    """As worked out separately for this load."""
    actual = split(SEVEN_B, ranks, engines, 1, ahead=False, machine=FREE_SYNC)
    assert actual.busy == pytest.approx(busy, abs=0.03)


def test_the_best_split_is_that_of_a_plain_search():
    for ahead in (False, True):
        best = best_split(SEVEN_B, 8, 1, ahead)
        assert best is not None
        seconds = [split(SEVEN_B, 8 - k, k, 1, ahead, Machine()).step_s for k in range(1, 8)]
        assert best.step_s == min(seconds)
        assert best.ranks + best.engines == 8
    assert best.step_s < best_split(SEVEN_B, 8, 1, ahead=False).step_s
    assert 0 < best.busy <= 1


def test_colocated_gpus_are_busy_all_the_time_but_for_the_weights():
    """All of them sample, then all of them learn."""
    shared, alone = colocated_split(SEVEN_B, 8), split(SEVEN_B, 8, 8, 1, False, FREE_SYNC)
    assert shared.rollout_s == alone.rollout_s
    assert shared.update_s == alone.update_s
    weights = 2 * 8.29e9 / Machine().inside_node
    assert shared.step_s == pytest.approx(shared.rollout_s + shared.update_s + weights)
    assert 0.95 < shared.busy < 1
    assert shared.step_s < best_split(SEVEN_B, 8, 1, ahead=False).step_s


def test_ranks_that_share_sequences_share_their_arithmetic():
    """Four groups on eight ranks: half of the ranks have none, or two have half of one each."""
    alone, shared = (
        split(replace(SEVEN_B, groups=4, context=c), 8, 1, 1, False, FREE_SYNC) for c in (1, 2)
    )
    assert shared.update_s == pytest.approx(alone.update_s / 2)


def test_a_split_without_room_is_not_proposed():
    four_at_least = best_split(SEVEN_B, 8, 2, True, fits=lambda ranks: ranks >= 5)
    assert four_at_least is not None
    assert (four_at_least.ranks, four_at_least.engines) == (6, 1)
    assert best_split(SEVEN_B, 8, 1, True, fits=lambda ranks: ranks > 8) is None


def test_the_doctor_says_how_to_split(mmr1, tmp_path):
    new_model(tmp_path / "tiny")
    (tmp_path / "run.yaml").write_text(
        f"model: {{path: {tmp_path / 'tiny'}}}\nalgorithm: {{name: grpo}}\n"
    )
    sizes = ("--memory", 80, "--prompt-tokens", 1124, "--vision-tokens", 1024)
    code, out, _ = mmr1("doctor", "--estimate", tmp_path / "run.yaml", *sizes, "--gpus", 8)
    assert code == 0
    assert "rollout.max_off_policy_steps=0: resources.ranks=" in out
    assert "rollout.max_off_policy_steps=1: resources.ranks=" in out
    assert "rollout.engine=vllm_colocate: " in out
    assert "GPUs busy" in out
    _, out, _ = mmr1("doctor", "--estimate", tmp_path / "run.yaml", "--memory", 1, "--gpus", 8)
    assert "rollout.engine=vllm_colocate: 8 GPUs of 1 GiB are too few" in out
