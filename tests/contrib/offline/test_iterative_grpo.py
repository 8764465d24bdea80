"""Rounds of a policy and a reward model, and the rankings between them."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from mmr1.config import Config, ModelConfig, NewLoraConfig
from mmr1.config.file import read_written
from mmr1.data.record import read_records
from mmr1.trainer.models.loading import load_trainable
from mmr1.trainer.models.lora import add_adapters
from mmr1_contrib.offline.iterative_grpo import run_iterative_grpo
from mmr1_contrib.offline.preferences import ranking_of
from mmr1_contrib.offline.rankings import rank_rollouts, ranked
from tests.contrib.offline.runs import config_of
from tests.jsonl import read_jsonl

SECOND_LETTER = (
    "def reward(completion: str, answer) -> float:\n    return float(len(completion) % 3) / 2\n"
)


def completion(text: str, value: float | None) -> dict[str, object]:
    return {"text": text, "components": {"exact": value}}


def test_one_text_for_each_value_the_best_first():
    values = [("a", 0.0), ("b", 1.5), ("c", 0.0), ("b", 1.5), ("d", None), ("", 2.0), ("e", 0.5)]
    assert ranked([completion(t, v) for t, v in values], "exact") == ["b", "e", "a"]
    assert ranked([completion("a", 1.0)], "other") == []


def test_rollouts_become_records_with_their_media_beside_them(tiny_model, digits, tmp_path):
    run = tmp_path / "run"
    (run / "rollouts").mkdir(parents=True)
    data = config_of(tiny_model, digits / "rl.jsonl", digits, run).data
    ids = [json.loads(line)["id"] for line in (digits / "rl.jsonl").read_text().splitlines()[:2]]
    differ = [completion("right", 1.0), completion("wrong", 0.0)]
    equal = [completion("a", 1.0), completion("b", 1.0)]
    for step in (1, 2):
        rows = [
            {"step": step, "id": ids[0], "completions": differ},
            {"step": step, "id": ids[1], "completions": equal},
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (run / f"rollouts/step_{step:06d}.jsonl").write_text(text)
    output = tmp_path / "elsewhere/rankings.jsonl"
    assert rank_rollouts(run, output, data, "exact") == 2
    records = read_records(output)
    assert [r.id for r in records] == [f"{ids[0]}-1", f"{ids[0]}-2"]
    assert [ranking_of(r) for r in records] == [("right", "wrong")] * 2
    original = read_records(digits / "rl.jsonl")[0]
    assert records[0].media[0].path.parent == output.parent / "media"
    assert records[0].media[0].read() == original.media[0].read()
    assert len(list((output.parent / "media").iterdir())) == 1
    with pytest.raises(ValueError, match="no prompt has completions of different 'other'"):
        rank_rollouts(run, output, data, "other")


@pytest.fixture
def config(reward_model, pair_file, tiny_model, digits, tmp_path) -> Config:
    own = tmp_path / "own.py"
    own.write_text(SECOND_LETTER)
    functions = (
        f"{{own: {{type: '{own}:reward', sandbox: null, weight: 0}}, "
        f"liked: {{type: reward_model, path: '{reward_model}'}}}}"
    )
    return config_of(
        *(tiny_model, digits / "rl.jsonl", digits, tmp_path / "run"),
        f"rewards={functions}",
        *("data.train_batch_size=4", "rollout.n=4", "rollout.max_prompt_length=88"),
        *("rollout.max_response_length=8", "trainer.max_steps=2", "scoring.timeout_s=20"),
        *("iterative_grpo.rounds=3", "iterative_grpo.rm_steps=2"),
        *(
            f"iterative_grpo.history={pair_file}",
            "iterative_grpo.rm_lr=0.0001",
            "iterative_grpo.ranked_by=own",
        ),
        *("algorithm.kl.coef=0.1", "eval.accuracy_function=own"),
        command="iterative-grpo",
    )


@pytest.mark.slow
def test_each_round_begins_where_the_last_one_ended(config, reward_model, tmp_path):
    run = tmp_path / "run"
    last = run_iterative_grpo(config)
    assert last == run / "round_3/policy/checkpoints/step_000002"

    def written(part: str) -> Config:
        return read_written(run / part / "config.yaml")

    assert written("round_1/policy").model.path == config.model.path
    for n in (1, 2):
        policy = run / f"round_{n}/policy/checkpoints/step_000002"
        judge = run / f"round_{n}/reward_model/checkpoints/step_000002"
        following = written(f"round_{n + 1}/policy")
        assert following.model.path == str(policy)  # and so the reference
        assert following.rewards["liked"].path == str(judge)
    assert written("round_1/reward_model").model.path == str(reward_model)
    second = written("round_2/reward_model")
    assert second.model.path == str(run / "round_1/reward_model/checkpoints/step_000002")
    rankings = [str(run / f"round_{n}/rankings.jsonl") for n in (1, 2)]
    assert second.data.train == pytest.approx(
        {rankings[1]: 0.9, str(run / "history.jsonl"): 0.05, rankings[0]: 0.05}
    )
    assert second.optimizer.lr == 0.0001
    first_kl = [read_jsonl(run / f"round_{n}/policy/metrics.jsonl")[0]["kl"] for n in (1, 2, 3)]
    assert first_kl == pytest.approx([0, 0, 0], abs=1e-6)


def test_what_is_done_is_not_done_again(config, tmp_path):
    run = tmp_path / "run"
    run_iterative_grpo(config)
    with pytest.raises(ValueError, match="already holds rounds; continue them with --resume"):
        run_iterative_grpo(config)
    shutil.rmtree(run / "round_3")
    shutil.rmtree(run / "round_2/reward_model/checkpoints/step_000002")
    times = {p: p.stat().st_mtime_ns for p in run.glob("round_[12]/policy/checkpoints/*/*")}
    run_iterative_grpo(config, resume=True)
    assert (run / "round_3/policy/checkpoints/step_000002").is_dir()
    assert {p: p.stat().st_mtime_ns for p in times} == times


def test_stored_adapters_are_of_the_first_policy_alone(config, tiny_model, reward_model, tmp_path):
    """With a learning rate of almost 0 nothing else may change the weights."""
    plain = load_trainable(ModelConfig(path=str(tiny_model), dtype="float32"))
    stored = add_adapters(plain, NewLoraConfig(rank=4), False)
    for name, parameter in stored.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    stored.save_pretrained(tmp_path / "adapter")
    changes = {
        "model.lora": {"path": str(tmp_path / "adapter")},
        "iterative_grpo.rounds": 2,
        "iterative_grpo.rm_steps": 1,
        "iterative_grpo.rm_lr": 1e-12,
        "optimizer.lr": 1e-12,
    }
    run_iterative_grpo(config.changed(changes))

    def weights(checkpoint) -> dict[str, torch.Tensor]:
        return load_file(checkpoint / "model.safetensors")

    run = tmp_path / "run"
    base = weights(tiny_model)
    first, second = (weights(run / f"round_{n}/policy/checkpoints/step_000002") for n in (1, 2))
    assert any((first[name] - base[name]).abs().max() > 0.01 for name in first)
    torch.testing.assert_close(second, first)
    judge = weights(run / "round_1/reward_model/checkpoints/step_000001")
    torch.testing.assert_close(judge, weights(reward_model))


def test_there_is_one_reward_model_to_train(tiny_model, digits, tmp_path):
    config = config_of(tiny_model, digits / "rl.jsonl", digits, tmp_path / "run")
    with pytest.raises(ValueError, match=r"trains the one reward model .* there are 0; add one"):
        run_iterative_grpo(config)
