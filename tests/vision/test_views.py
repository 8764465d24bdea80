"""Pictures in another view: what is left of them, by numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmr1.config.views import AnnealingConfig, ViewsConfig
from mmr1.vision.views import altered, kept_of_picture, view_options


def shown(pixels: np.ndarray, view: str, strength: float, seed: int = 0) -> np.ndarray:
    return altered(pixels, view_options(view, strength, seed))


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (2, 60, 40, 3), dtype=np.uint8)


def test_the_noise_is_that_of_a_diffusion_process():
    """As a loop over its steps has it: x <- sqrt(1 - beta) x + sqrt(beta) noise."""
    kept, variance = 1.0, 0.0
    for x in torch.linspace(-6, 6, 1000, dtype=torch.float64)[:501]:
        beta = float(torch.sigmoid(x)) * (0.005 - 1e-5) + 1e-5
        kept, variance = kept * (1 - beta) ** 0.5, (1 - beta) * variance + beta
    assert kept_of_picture()[500] == pytest.approx(kept)
    assert variance == pytest.approx(1 - kept**2)
    level = 0.5 / kept  # so that the mean is in the middle, and little is cut off
    flat = np.full((256, 256, 3), round(level * 255), np.uint8)
    noisy = shown(flat, "noise", 0.1).astype(float) / 255
    early = float(kept_of_picture()[100])
    assert noisy.mean() == pytest.approx(early * flat[0, 0, 0] / 255, abs=1e-3)
    assert noisy.std() == pytest.approx((1 - early**2) ** 0.5, rel=0.02)


def test_a_crop_shows_one_window_in_all_frames(frames):
    crop = shown(frames, "crop", 0.4)
    rows, columns = np.nonzero((crop == frames).all((0, 3)) & (frames != 127).any((0, 3)))
    window = (slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1))
    assert crop[:, *window].shape == (2, 36, 24, 3)
    assert (crop[:, *window] == frames[:, *window]).all()
    outside = np.ones(frames.shape, bool)
    outside[:, *window] = False
    assert (crop[outside] == 127).all()


def test_a_lower_resolution_has_fewer_rows_and_columns(frames):
    """Of stripes that are finer than what is left only their mean stays."""
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[::2] = 200
    assert (shown(stripes, "resolution", 0.5) == 100).all()
    coarse = shown(np.kron(stripes[:8, :8], np.ones((8, 8, 1), np.uint8)), "resolution", 0.5)
    assert coarse.std() > 90  # stripes of eight rows are still there
    assert shown(frames, "resolution", 0.5).shape == frames.shape


def test_a_seed_draws_what_is_seen(frames):
    for view in ("noise", "crop", "mask"):
        assert (shown(frames, view, 0.5, 3) == shown(frames, view, 0.5, 3)).all()
        assert (shown(frames, view, 0.5, 3) != shown(frames, view, 0.5, 4)).any()
    assert (shown(frames, "blank", 1) == 127).all()
    assert altered(frames, {"fps": 2.0}) is frames


def test_the_strength_falls_along_a_sigmoid():
    """NoisyRollout's for Geometry3K: step 500, 40 of 60 steps, steepness 30."""
    views = ViewsConfig(view="noise", strength=0.5, annealing=AnnealingConfig())
    at = [views.strength_at(step, 60) for step in (1, 40, 50, 60)]
    assert at[0] == pytest.approx(0.5 / (1 + 2.718281828459045 ** (30 * (1 - 40) / 60)))
    assert at[1] == pytest.approx(0.25)
    assert at[2] == pytest.approx(0.5 * 0.0066928509)  # 1 - sigmoid(5)
    assert at[3] == pytest.approx(0.5 * 4.5397868e-05)  # 1 - sigmoid(10)
    assert ViewsConfig(view="noise", strength=0.5).strength_at(7, 60) == 0.5
    assert ViewsConfig(view="blank").strength_at(7, 60) == 1


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"view": "noise"}, "noise needs a strength"),
        ({"view": "blank", "strength": 0.5}, "blank has no strength"),
        ({"view": "shuffle", "annealing": {}}, "no strength to fall"),
    ],
)
def test_a_strength_is_given_where_there_is_one(keys, said):
    with pytest.raises(ValueError, match=said):
        ViewsConfig(**keys)


def test_a_share_is_at_least_one_completion():
    assert [ViewsConfig(view="blank", share=s).count(5) for s in (0.1, 0.5, 1.0)] == [1, 2, 5]
