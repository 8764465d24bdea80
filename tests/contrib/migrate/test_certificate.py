"""A certificate beside a program of R1-V's layout, written here; a fault in it is found."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from mmr1.config.file import config_from
from mmr1_contrib.migrate.originals.certificate import _commit, certify
from mmr1_contrib.migrate.originals.projects import original

PROGRAM = """
import a_training_stack

def accuracy_reward(completions, solution, **kwargs):
    texts = [c[0]["content"] for c in completions]
    golds = [s.replace("<answer>", "").replace("</answer>", "").strip() for s in solution]
    return [float(f"<answer>{g}</answer>" in t) for t, g in zip(texts, golds)]

def format_reward(completions, **kwargs):
    return [float(c[0]["content"].startswith("<think>")) for c in completions]

def main(script_args, training_args, model_args):
    QUESTION_TEMPLATE = "{Question} Think in <think> tags."

    def make_conversation_image(example):
        text = QUESTION_TEMPLATE.format(Question=example["problem"])
        content = [{"type": "image"}, {"type": "text", "text": text}]
        return {"prompt": [{"role": "user", "content": content}]}

    def make_conversation_video(example):
        text = QUESTION_TEMPLATE.format(Question=example["problem"])
        content = [{"type": "video"}, {"type": "text", "text": text}]
        return {"prompt": [{"role": "user", "content": content}]}
"""
VISION = """
import decord
import torch
from qwen_vl_utils import vision_process
from torchvision import transforms
from torchvision.transforms import InterpolationMode

def get_video_reader_backend():
    return "decord"

def smart_nframes(ele, total_frames, video_fps):
    return vision_process.smart_nframes(ele, total_frames, video_fps)

def _read_video_decord(ele):
    reader = decord.VideoReader(ele["video"])
    count = smart_nframes(ele, len(reader), reader.get_avg_fps())
    taken = torch.linspace(0, len(reader) - 1, count).round().long().tolist()
    return torch.tensor(reader.get_batch(taken).asnumpy()).permute(0, 3, 1, 2), reader.get_avg_fps()

VIDEO_READER_BACKENDS = {"decord": _read_video_decord}

def fetch_video(ele):
    video, fps = VIDEO_READER_BACKENDS[get_video_reader_backend()](ele)
    count, _, height, width = video.shape
    video = video[torch.linspace(0, count - 1, 16).long()]
    size = vision_process.smart_resize(height, width, 28, 100352, 153664)
    bicubic = {"interpolation": InterpolationMode.BICUBIC, "antialias": True}
    return transforms.functional.resize(video, list(size), **bicubic).float()
"""
TRAINER = """
import torch

class Trainer:
    def compute_loss(self, model, inputs):
        per_token_logps = self._get_per_token_logps(model)
        gap = ref_per_token_logps - per_token_logps
        per_token_kl = torch.exp(ref_per_token_logps - per_token_logps) - (
            ref_per_token_logps - per_token_logps) - 1
        mean_grouped_rewards = rewards.view(-1, self.num_generations).mean(dim=1)
        std_grouped_rewards = rewards.view(-1, self.num_generations).std(dim=1)
        mean_grouped_rewards = mean_grouped_rewards.repeat_interleave(self.num_generations, dim=0)
        std_grouped_rewards = std_grouped_rewards.repeat_interleave(self.num_generations, dim=0)
        advantages = (rewards - mean_grouped_rewards) / (std_grouped_rewards + 1e-4)
        per_token_loss = torch.exp(per_token_logps - per_token_logps.detach())
        per_token_loss = per_token_loss * advantages.unsqueeze(1)
        per_token_loss = -(per_token_loss - self.beta * per_token_kl)
        loss = ((per_token_loss * completion_mask).sum(dim=1) / completion_mask.sum(dim=1)).mean()
        return loss
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    package = tmp_path / "R1-V/src/r1-v/src/open_r1"
    (package / "trainer").mkdir(parents=True)
    (package / "grpo.py").write_text(PROGRAM)
    (package / "trainer/grpo_trainer.py").write_text(TRAINER)
    return tmp_path / "R1-V"


def exact(checkout: Path, model: Path, **changes):
    program = checkout / "src/r1-v/src/open_r1/grpo.py"
    tree = {
        "model": {"path": str(model)},
        "data": {
            "format": "r1_v",
            "prompt_template": f"{program}:QUESTION_TEMPLATE",
            "image": {"min_pixels": 3136, "max_pixels": 401408},
        },
        "rewards": {
            "functions": {n: {"use": f"{program}:{n}_reward"} for n in ("accuracy", "format")}
        },
        "algorithm": {
            "advantage": {"epsilon": 1e-4},
            "loss": {"agg_mode": "seq-mean-token-mean"},
            "kl": {"coef": 0.04, "estimator": "k3"},
        },
    }
    for key, value in changes.items():
        tree[key] |= value
    return config_from(tree)


def counts(checks) -> dict[str, tuple[int, int]]:
    return {check.name: (check.compared, check.equal) for check in checks}


def test_all_is_equal_and_written(checkout, tiny_model, tmp_path):
    config = exact(checkout, tiny_model)
    checks = certify("r1_v_clevr", config, checkout, tmp_path / "out", rows=6)
    assert counts(checks) == {
        "prompts": (6, 6), "tokens": (6, 6), "grids": (6, 6), "pixels": (6, 6),
        "rewards": (48, 48), "loss": (20, 20),
    }  # fmt: skip
    facts = json.loads((tmp_path / "out/certificate.json").read_text())
    (text,) = facts["texts"].values()
    assert text["characters"] == len("{Question} Think in <think> tags.")
    assert "| loss |" in (tmp_path / "out/certificate.md").read_text()


def test_videos_are_compared_by_their_frames(checkout, tiny_model, tmp_path):
    root, vision = tmp_path / "Open", "qwen-vl-utils/src/qwen_vl_utils/vision_process.py"
    (root / "src").mkdir(parents=True)
    (checkout / "src/r1-v/src/open_r1").rename(root / "src/open_r1_video")
    (root / vision).parent.mkdir(parents=True)
    (root / vision).write_text(VISION)
    program = root / "src/open_r1_video/grpo.py"
    video = {"min_pixels": 100352, "max_pixels": 153664}
    accuracy = {"functions": {"accuracy": {"use": f"{program}:accuracy_reward"}}}
    for count, size, equal in ((16, 153664, True), (8, 153664, False), (16, 100800, False)):
        video["max_pixels"] = size
        config = exact(
            checkout, tiny_model, rewards=accuracy,
            data={
                "prompt_template": f"{program}:QUESTION_TEMPLATE",
                "video": {**video, "num_frames": count},
            },
        )  # fmt: skip
        found = counts(certify("open_r1_video", config, root, tmp_path / "out", rows=6))
        taken = found.pop("videos")
        assert (taken == (300, 300)) is equal
        same = {found.pop(name) == (6, 6) for name in ("tokens", "grids", "pixels")}
        assert same == {count == 16}  # the clip is small: 100,800 pixels are enough for it
        assert found == {"prompts": (6, 6), "rewards": (24, 24), "loss": (20, 20)}


def test_what_differs_is_shown(checkout, tiny_model, tmp_path):
    template = tmp_path / "other.jinja"
    template.write_text("{{ question }} Think in <think> tag.")
    small = {"min_pixels": 3136, "max_pixels": 100352}
    config = exact(
        checkout, tiny_model,
        data={"prompt_template": str(template), "image": small},
        algorithm={"loss": {"agg_mode": "token-mean"}},
        rewards={"functions": {"accuracy": {"use": "count"}, "format": {"use": "format"}}},
    )  # fmt: skip
    checks = certify("r1_v_clevr", config, checkout, tmp_path / "out", rows=6)
    equal = {name: found for name, (_, found) in counts(checks).items()}
    assert equal["prompts"] == equal["tokens"] == equal["loss"] == 0
    assert 0 < equal["rewards"] < 48
    shown = (tmp_path / "out/certificate.md").read_text()
    assert "Not equal in prompts, the first of them:" in shown


def test_whose_commit_it_is(checkout, tmp_path):
    """Of a copy below another project's repository it is not that one's; a wrong one is refused."""

    def git(*words):
        name = ("-c", "user.name=x", "-c", "user.email=x@x")
        command = ["git", *name, "-C", str(checkout.parent), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "x")
    head = git("rev-parse", "HEAD")
    assert _commit(checkout, None) is None
    assert _commit(checkout, "bbbbe3d") == "bbbbe3d (as given: a copy, which git does not know)"
    assert _commit(checkout.parent, None) == _commit(checkout.parent, head[:7]) == head
    with pytest.raises(ValueError, match=f"--commit bbbbe3d: git has {head}"):
        _commit(checkout.parent, "bbbbe3d")


def test_what_is_no_checkout(tmp_path, mmr1):
    with pytest.raises(ValueError, match=r"this checkout has no src/r1-v/src/open_r1/grpo.py"):
        original("r1_v_clevr", tmp_path)
    with pytest.raises(ValueError, match="recipe 'digits' has no original here; known: r1_v_clevr"):
        original("digits", tmp_path)
    code, _, message = mmr1("recipe", "check", "text_math", "--original", tmp_path)
    assert (code, "has no exact_rl.yaml" in message) == (2, True)
