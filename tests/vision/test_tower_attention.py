"""The tower's attention in one call against transformers' call per window."""

import copy
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForImageTextToText

from mmr1.vision import tower_attention
from mmr1.vision.families.qwen_vl.tower import run_tower
from mmr1.vision.prepare import Medium
from tests.vision.families.tiny_family import FAMILIES

# Patches of images with whole windows and parts of some, and of a video: windows are 8 x 8.
GRIDS = [(1, 20, 20), (1, 8, 12), (2, 16, 8), (1, 2, 2)]


@pytest.fixture(scope="module")
def tower(tiny_model):
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    return model.model.visual


@pytest.fixture(scope="module")
def media():
    generator = torch.Generator().manual_seed(0)

    def medium(number: int, grid: tuple[int, int, int]) -> Medium:
        t, h, w = grid
        patches = torch.randn(t * h * w, 3 * 2 * 14 * 14, generator=generator)
        kind = "video" if t > 1 else "image"
        return Medium(kind, patches, grid, 2, None, str(number))

    return [medium(number, grid) for number, grid in enumerate(GRIDS)]


class Calls(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def attention(self) -> int:
        return sum(n for name, n in self.seen.items() if "attention" in name)


def features(tower, media, checkpointing: bool = False):
    """Ours: features, gradients and calls of the attention kernel."""
    tower = copy.deepcopy(tower).train()
    if checkpointing:
        tower.gradient_checkpointing_enable({"use_reentrant": False})
    with Calls() as calls:
        rows = torch.cat(run_tower(tower, media))
        forward = calls.attention
        rows.square().sum().backward()
    return rows, {n: p.grad for n, p in tower.named_parameters()}, forward, calls.attention


def transformers_features(tower, media):
    """Each medium by itself, a call per window."""
    tower = copy.deepcopy(tower)
    assert tower.config._attn_implementation == "sdpa"
    rows, calls = [], 0
    for medium in media:
        with Calls() as counted:
            grid = torch.tensor([medium.grid])
            rows.append(tower(medium.patches, grid_thw=grid).pooler_output)
        calls += counted.attention
    torch.cat(rows).square().sum().backward()
    return torch.cat(rows), {n: p.grad for n, p in tower.named_parameters()}, calls


@pytest.fixture
def as_on_gpu(monkeypatch):
    """The CPU's batches of padded blocks stand in for the kernel, and are called as it is."""
    monkeypatch.setattr(tower_attention, "is_on_gpu", lambda tower: True)
    monkeypatch.setattr(tower_attention, "has_varlen_kernel", lambda value: True)


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_the_same_features_and_gradients_in_fewer_calls(tower, media, checkpointing):
    rows, gradients, forward, total = features(tower, media, checkpointing)
    expected, expected_gradients, calls = transformers_features(tower, media)
    torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-5)
    for name, gradient in gradients.items():
        scale = float(expected_gradients[name].abs().max())
        torch.testing.assert_close(
            gradient, expected_gradients[name], atol=1e-5 * scale, rtol=1e-5, msg=name
        )
    layers = len(tower.blocks)
    assert calls >= 9 * layers / 2  # half of the layers have windows, 9 of them the first image
    assert forward <= 4 * layers
    assert total <= (3 if checkpointing else 2) * forward


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl"])
def test_towers_without_windows(name):
    """One call a layer, and the features of inner layers beside those of the last."""
    tiny = FAMILIES[name]
    tower = tiny.model().model.visual
    media = [tiny.image(160, 96), tiny.video(20, 96, 64), tiny.image(64, 64, 3)]
    rows = []
    for medium in media:
        out = tower(medium.patches, grid_thw=torch.tensor([medium.grid]))
        inner = getattr(out, "deepstack_features", [])
        rows.append(torch.cat([out.pooler_output, *inner], dim=-1))
    expected = torch.cat(rows)
    expected.square().sum().backward()
    wanted = {n: p.grad.clone() for n, p in tower.named_parameters()}
    tower.zero_grad()
    with Calls() as calls:
        got = torch.cat(run_tower(tower, media))
    assert calls.attention <= 2 * len(tower.blocks)  # images and frames of two sizes
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    got.square().sum().backward()
    for parameter, gradient in zip(tower.parameters(), wanted.values(), strict=True):
        scale = float(gradient.abs().max())
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-5 * scale, rtol=1e-5)


@pytest.mark.usefixtures("as_on_gpu")
def test_others_who_call_the_tower_get_transformers_attention(tower, media):
    used = copy.deepcopy(tower)
    run_tower(used, media[:1])
    assert used.config._attn_implementation == "mmr1_flash"
    grid = torch.tensor([m.grid for m in media])
    patches = torch.cat([m.patches for m in media])
    with torch.no_grad():
        with Calls() as counted:
            actual = used(patches, grid_thw=grid).pooler_output
        with Calls() as plain:
            expected = tower(patches, grid_thw=grid).pooler_output
    assert counted.attention == plain.attention
    torch.testing.assert_close(actual, expected, atol=0, rtol=0)
