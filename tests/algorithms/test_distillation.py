"""A reference of its own: distillation on the student's samples, and references that move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mmr1.algorithms.interface import AdvantageInputs
from mmr1.config import AlgorithmConfig, Config
from mmr1.config.file import load_config
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.coefficients import Coefficients
from mmr1.trainer.forward.logprob_head import Distributions, token_kl
from mmr1.trainer.models.loading import check_same_tokens
from mmr1.trainer.train import run_training
from mmr1.vision.families.tiny import new_model
from tests.jsonl import read_jsonl
from tests.trainer.same_runs import assert_same


def test_a_token_answers_for_its_own_kl():
    config = AlgorithmConfig(
        name="on_policy_distillation", advantage={"teacher": {"path": "teacher"}}
    )
    assert Coefficients(config).kl == 1.0
    mask = torch.tensor([[True, True], [True, False]])
    kl = torch.tensor([[0.5, -2.0], [1.0, 9.0]])  # log p - log p_teacher
    valid = torch.ones(1, 2, dtype=torch.bool)
    advantages = build_algorithm(config).advantage.of_tokens
    alike = advantages(AdvantageInputs(torch.ones(1, 2), valid, mask, kl))
    torch.testing.assert_close(alike, torch.tensor([[-0.5, 2.0], [-1.0, 0.0]]))
    rewarded = advantages(AdvantageInputs(torch.tensor([[1.0, 0.0]]), valid, mask, kl))
    of_reward = 0.5 / (0.5**0.5)  # (1 - 1/2) over the deviation of the sample
    expected = torch.tensor([[of_reward - 0.5, of_reward + 2.0], [-of_reward - 1.0, 0.0]])
    torch.testing.assert_close(rewarded, expected, atol=1e-4, rtol=0)


def test_vocabularies_of_two_lengths():
    torch.manual_seed(0)
    hidden, ref_hidden = torch.randn(3, 4), torch.randn(3, 6)
    weight, ref_weight = torch.randn(11, 4), torch.randn(9, 6)
    log_p = (hidden @ weight[:9].T).log_softmax(-1)
    log_q = (ref_hidden @ ref_weight.T).log_softmax(-1)
    expected = (log_p.exp() * (log_p - log_q)).sum(-1)
    kl = token_kl(Distributions(hidden, weight), Distributions(ref_hidden, ref_weight))
    torch.testing.assert_close(kl, expected)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    """A model of the same tokens with other weights: sure of a few tokens."""
    path = tmp_path_factory.mktemp("models") / "teacher"
    new_model(path, seed=7)
    from safetensors.torch import load_file, save_file

    weights = load_file(path / "model.safetensors")
    name = next(n for n in weights if n.endswith("lm_head.weight") or "embed_tokens" in n)
    weights[name] *= 10
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def config(model: Path, digits: Path, teacher: Path, out: Path, *keys: str) -> Config:
    (out.parent / "nothing.py").write_text("def reward(completion, answer):\n    return 0.0\n")
    own = f"{{own: {{type: '{out.parent}/nothing.py:reward', sandbox: null}}}}"
    return load_config(
        None,
        [
            f"model.path={model}",
            "model.dtype=float32",
            f"data.train={digits / 'rl.jsonl'}",
            f"data.media_root={digits}",
            f"trainer.output_dir={out}",
            "data.train_batch_size=8",
            "rollout.n=4",
            "rollout.max_prompt_length=88",
            "rollout.max_response_length=8",
            "rollout.engine=hf",
            "optimizer.lr=0.003",
            "optimizer.scheduler.warmup_steps=0",
            "trainer.logging_steps=1000",
            "trainer.threads=1",
            f"rewards={own}",
            *(key.format(teacher=teacher) for key in keys),
        ],
    )


DISTILLATION = (
    "algorithm.name=on_policy_distillation",
    "algorithm.advantage.teacher.path={teacher}",
)
FULL_KL = (
    "algorithm.kl.type=full",
    "algorithm.kl.coef=1",
    "algorithm.kl.reference.type=model",
    "algorithm.kl.reference.path={teacher}",
)


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        # One sample of the KL at each token; the order of the data depends on their path.
        ((*DISTILLATION, "trainer.max_steps=20"), 0.9),
        (FULL_KL, 0.7),
        ((*FULL_KL, "algorithm.kl.jsd_beta=0.5"), 0.7),
    ],
    ids=["advantage", "loss", "jsd"],
)
def test_a_student_comes_nearer_to_its_teacher(keys, left, tiny_model, digits, teacher, tmp_path):
    steps = "trainer.max_steps=12"
    run_training(config(tiny_model, digits, teacher, tmp_path / "run", steps, *keys))
    kl = [row["kl"] for row in read_jsonl(tmp_path / "run/metrics.jsonl")]
    assert sum(kl[:3]) / 3 > (0.1 if "jsd" in str(keys) else 0.5)
    assert sum(kl[-3:]) < left * sum(kl[:3])


@pytest.mark.slow
def test_a_distillation_resumes(tiny_model, digits, teacher, tmp_path):
    def run(out: str, steps: int, resume: bool = False) -> None:
        keys = (
            *(f"trainer.max_steps={steps}", "trainer.log_completions_steps=1"),
            "optimizer.scheduler=constant",
        )
        out_dir = tmp_path / out
        run_training(
            config(tiny_model, digits, teacher, out_dir, *DISTILLATION, *keys), resume=resume
        )

    run("whole", 3)
    run("parts", 2)
    run("parts", 3, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_teacher_that_cannot_score_the_students_tokens(tiny_model, teacher, tmp_path):
    check_same_tokens(str(tiny_model), str(teacher), "algorithm.advantage.teacher.path", False)
    other = tmp_path / "other"
    new_model(other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(
        {**tokenizer["added_tokens"][-1], "id": 9999, "content": "<|one_more|>"}
    )
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match=r"algorithm.advantage.teacher.path .* has other tokens"):
        check_same_tokens(str(tiny_model), str(other), "algorithm.advantage.teacher.path", False)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["algorithm.name=on_policy_distillation"], "algorithm.advantage.teacher' is missing"),
        (["algorithm.kl.reference.path=a"], "algorithm.kl.coef' is missing"),
        (
            ["algorithm.kl={coef: 1, reference: {type: model, path: a, sync_steps: 1}}"],
            "'model' has no 'sync_steps'",
        ),
        (["algorithm.kl={coef: 1, jsd_beta: 0.5}"], "'loss' has no 'jsd_beta'"),
        (["algorithm.ptx={data: a, loss: distillation}"], "what kl.type=full measures"),
    ],
)
def test_references_that_make_no_sense(keys, message):
    with pytest.raises(ValueError, match=message):
        load_config(None, ["model.path=a", *keys])
