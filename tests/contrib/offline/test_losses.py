"""Preference losses against numbers worked by hand and slow readings of the formulas."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

from mmr1.config.file import load_config
from mmr1_contrib.offline.preference_losses import (
    _ON_PAIRS,
    PairScores,
    balanced,
    kto,
    loss_on_pairs,
    reference_point,
)
from mmr1_contrib.offline.sections import DpoConfig, KtoLoss, OwnPreferenceLoss

# Chosen gained 2 nats over the reference in 4 tokens, rejected lost 1 in 2.
PAIR = PairScores(
    torch.tensor([[-3.0, -6.0]]), torch.tensor([[-5.0, -5.0]]), torch.tensor([[4.0, 2.0]])
)


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def loss_of(loss_type: str, pairs: PairScores = PAIR, **keys: object) -> torch.Tensor:
    return loss_on_pairs(DpoConfig(loss={"type": loss_type, **keys}).loss)(pairs).loss


@pytest.mark.parametrize(
    ("loss_type", "keys", "expected"),
    [
        ("sigmoid", {"beta": 0.1}, -log_sigmoid(0.3)),
        (
            "sigmoid",
            {"beta": 0.1, "label_smoothing": 0.2},
            -0.8 * log_sigmoid(0.3) - 0.2 * log_sigmoid(-0.3),
        ),
        (
            "robust",
            {"beta": 0.1, "label_smoothing": 0.2},
            (-0.8 * log_sigmoid(0.3) + 0.2 * log_sigmoid(-0.3)) / 0.6,
        ),
        ("sigmoid_norm", {"beta": 0.1}, -log_sigmoid(0.1 * (2 / 4 + 1 / 2))),
        ("ipo", {"beta": 0.5}, (2 / 4 + 1 / 2 - 1) ** 2),
        ("ipo", {"beta": 0.1}, (2 / 4 + 1 / 2 - 5) ** 2),
        ("simpo", {"beta": 2, "gamma": 0.5}, -log_sigmoid(2 * -0.75 + 2 * 3 - 0.5)),
    ],
)
def test_losses_by_hand(loss_type, keys, expected):
    assert loss_of(loss_type, **keys).item() == pytest.approx(expected, rel=1e-6)


def test_orpo_by_hand():
    # Mean probabilities of 1/2 and 1/5: odds of 1 and 1/4, so the odds ratio is 4.
    logprobs = torch.tensor([[4 * math.log(0.5), 2 * math.log(0.2)]])
    pairs = PairScores(logprobs, torch.zeros(1, 2), torch.tensor([[4.0, 2.0]]))
    expected = math.log(2) + 0.1 * math.log(1 + 1 / 4)  # -log sigmoid(log 4) = log(5/4)
    assert loss_of("orpo", pairs, beta=0.1).item() == pytest.approx(expected, rel=1e-6)


def test_orpo_of_a_certain_completion_has_a_finite_gradient():
    logprobs = torch.tensor([[0.0, -8.0]], requires_grad=True)
    pairs = PairScores(logprobs, torch.zeros(1, 2), torch.tensor([[4.0, 2.0]]))
    loss_of("orpo", pairs).sum().backward()
    assert logprobs.grad.isfinite().all()


def test_robust_dpo_is_unbiased():
    """Over labels flipped with probability e its mean is the DPO loss of the true labels."""
    flipped = PairScores(PAIR.logprobs.flip(1), PAIR.ref_logprobs.flip(1), PAIR.lengths.flip(1))
    mean = 0.7 * loss_of("robust", label_smoothing=0.3) + 0.3 * loss_of(
        "robust", flipped, label_smoothing=0.3
    )
    torch.testing.assert_close(mean, loss_of("sigmoid"))


def test_without_a_change_every_loss_is_at_rest():
    still = PairScores(PAIR.ref_logprobs, PAIR.ref_logprobs, PAIR.lengths)
    for loss_type in ("sigmoid", "sigmoid_norm", "robust"):
        assert loss_of(loss_type, still).item() == pytest.approx(math.log(2))
    assert loss_of("ipo", still, beta=0.1).item() == pytest.approx(25)


def trl_reading(
    loss_type: str, win: float, lose: float, rw: float, rl: float, n: list[int]
) -> float:
    """What TRL computes for one pair, in plain Python: DPOTrainer, CPOTrainer and ORPOTrainer."""
    beta, smoothing, gamma = 0.3, 0.1, 0.5
    delta = (win - lose) - (rw - rl)
    match loss_type:
        case "sigmoid":
            return -log_sigmoid(beta * delta) * (1 - smoothing) - (
                log_sigmoid(-beta * delta) * smoothing
            )
        case "robust":
            clean, noisy = -log_sigmoid(beta * delta), -log_sigmoid(-beta * delta)
            return (clean * (1 - smoothing) - noisy * smoothing) / (1 - 2 * smoothing)
        case "sigmoid_norm":
            return -log_sigmoid(beta * ((win - rw) / n[0] - (lose - rl) / n[1]))
        case "ipo":
            return ((win - rw) / n[0] - (lose - rl) / n[1] - 1 / (2 * beta)) ** 2
        case "simpo":
            return -log_sigmoid(beta * (win / n[0] - lose / n[1] - gamma / beta))
        case "orpo":
            mean_w, mean_l = win / n[0], lose / n[1]
            log_odds = (mean_w - mean_l) - (
                math.log1p(-math.exp(mean_w)) - math.log1p(-math.exp(mean_l))
            )
            return -mean_w - beta * log_sigmoid(log_odds)
    raise AssertionError(loss_type)


@pytest.mark.parametrize("loss_type", sorted(_ON_PAIRS))
def test_losses_are_those_of_trl(loss_type):
    rng = random.Random(1)
    smooths = hasattr(DpoConfig(loss=loss_type).loss, "label_smoothing")
    keys = {"label_smoothing": 0.1} if smooths else {}
    for _ in range(200):
        win, lose, rw, rl = (rng.uniform(-30, -0.5) for _ in range(4))
        n = [rng.randint(1, 40), rng.randint(1, 40)]
        pairs = PairScores(
            torch.tensor([[win, lose]], dtype=torch.float64),
            torch.tensor([[rw, rl]], dtype=torch.float64),
            torch.tensor([n], dtype=torch.float64),
        )
        ours = loss_of(loss_type, pairs, beta=0.3, **keys).item()
        assert ours == pytest.approx(
            trl_reading(loss_type, win, lose, rw, rl, n), rel=1e-6, abs=1e-9
        )


def test_kto_by_hand():
    config = KtoLoss(beta=0.5, desirable_weight=2, undesirable_weight=3)
    ratios, desirable = torch.tensor([2.0, -1.0]), torch.tensor([True, False])
    kl = reference_point(torch.tensor([3.0, -1.0]).mean())
    assert kl == 1
    sigmoid = 1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(-1.0))
    expected = [2 * (1 - sigmoid[0]), 3 * (1 - sigmoid[1])]
    assert kto(ratios, desirable, kl, config).tolist() == pytest.approx(expected)
    assert reference_point(torch.tensor([-3.0, -1.0]).mean()) == 0


@pytest.mark.parametrize(
    ("labels", "weights"),
    [
        ([(True, False), (False, False)], [(1, 1 / 3), (1 / 3, 1 / 3)]),
        ([(True, True), (False,)], [(0.5, 0.5), (1,)]),
        ([(True, True)], [(1, 1)]),  # one kind has nothing to be weighed against
    ],
)
def test_both_kinds_of_a_rounds_labels_weigh_the_same(labels, weights):
    assert balanced(labels) == [pytest.approx(row) for row in weights]
    assert DpoConfig(loss="kto").balances_labels
    assert not DpoConfig(loss=KtoLoss(undesirable_weight=0.3)).balances_labels
    assert not DpoConfig(loss="ipo").balances_labels


def test_no_gradient_flows_through_the_reference_point():
    kl = torch.tensor(1.0, requires_grad=True)
    ratios = torch.tensor([2.0], requires_grad=True)
    kto(ratios, torch.tensor([True]), kl, KtoLoss()).sum().backward()
    assert kl.grad is None
    assert ratios.grad.item() < 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ["type=ipo", "label_smoothing=0.1"],
            "type 'ipo' has no 'label_smoothing'; type sigmoid, robust have it",
        ),
        (["gamma=1.0"], "type 'sigmoid' has no 'gamma'; type simpo has it"),
        (["type=orpo", "nll_coef=1.0"], "type 'orpo' has no 'nll_coef'; type sigmoid,"),
        (["desirable_weight=2.0"], "type 'sigmoid' has no 'desirable_weight'; type kto has it"),
        (["type=simpoo"], r"simpoo.*did you mean 'simpo'"),
        (["label_smoothing=0.5"], "less than 0.5"),
    ],
)
def test_what_a_loss_does_not_read_is_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        load_config(None, ["model.path=a", *(f"dpo.loss.{key}" for key in keys)], "dpo")


def test_a_loss_of_ones_own_is_a_function_in_a_file(tmp_path: Path):
    file = tmp_path / "own.py"
    file.write_text(
        "from mmr1_contrib.offline.preference_losses import PairLoss\n"
        "def hinge(pairs, config):\n"
        "    rewards = config.beta * pairs.log_ratios\n"
        "    return PairLoss((1 - rewards[:, 0] + rewards[:, 1]).relu(), rewards)\n"
    )
    assert loss_of(f"{file}:hinge", beta=0.1).item() == pytest.approx(0.7)


def test_a_loss_of_ones_own_is_an_entry_point(tmp_path, monkeypatch):
    (tmp_path / "own_pairs.py").write_text("def mine(pairs, config): return pairs + 1")
    package = tmp_path / "own_pairs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: own_pairs\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[mmr1.preference_losses]\nadded = own_pairs:mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert loss_on_pairs(OwnPreferenceLoss(type="added"))(3) == 4
