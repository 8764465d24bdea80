"""T-GRPO: frames in another order, a second rollout of half a group, and the bonus for order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmr1.config import Config
from mmr1.config.file import load_config
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.protocol import complete
from mmr1.trainer.sampling.plan import planner
from mmr1.trainer.train import run_training
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.prepare import MediaCache
from mmr1.vision.videos import load_video
from tests.trainer.tiny_groups import new_model
from tests.vision.media import write_video


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """A bar that moves: every frame is another."""
    return write_video(tmp_path_factory.mktemp("clips") / "bar.mp4", 8, 56, 56, fps=2)


def test_frames_are_put_into_another_order(clip):
    plain, metadata = load_video(MediaRef("video", clip, options={"fps": 2.0}))
    orders = []
    for seed in (0, 1, 0):
        ref = MediaRef("video", clip, options={"fps": 2.0, "shuffle": seed})
        frames, same = load_video(ref)
        assert same.frames_indices == metadata.frames_indices  # times stay where they were
        orders.append([next(i for i in range(8) if torch.equal(plain[i], f)) for f in frames])
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert orders[0] == orders[2] != orders[1]
    assert orders[0] != list(range(8))


def test_half_a_group_is_sampled_for_each_video_and_none_for_an_image(clip, digit_samples, parts):
    family = parts[0]
    media = MediaCache(family.prepare_media)
    engine = HfEngine(new_model(), family, media)
    video = MediaRef("video", clip, options={"fps": 2.0})
    sample = Sample("v", (Message("user", (video, TextPart("Which way?"))),))
    rollout = {"n": 5, "max_response_length": 12, "views": {"view": "shuffle", "loss": "none"}}
    plan = planner(Config(model={"path": "any"}, rollout=rollout), greedy=False)
    (image,) = plan(1, family.render_prompt(digit_samples[0]), 1)
    assert image.role == "group"
    group, beside = plan(1, family.render_prompt(sample), 2)
    assert (group.role, beside.role) == ("group", "beside")
    assert len(beside.request.seeds) == 2
    assert not {*beside.request.seeds} & {*group.request.seeds}
    (shuffled,) = complete(engine, [beside.request])
    (ordered,) = complete(engine, [replace(group.request, seeds=beside.request.seeds)])
    # The same seeds, and other frames.
    assert [c.text for c in shuffled.completions] != [c.text for c in ordered.completions]


REWARD = "def reward(completion: str, answer) -> float:\n    return float(len(completion) % 2)\n"


def test_a_whole_run(clip, tiny_model, tmp_path):
    (tmp_path / "own.py").write_text(REWARD)
    (tmp_path / "bar.mp4").write_bytes(clip.read_bytes())
    turns = [{"role": "user", "content": "<video>Which way?"}]
    rows = [
        {"version": 1, "id": f"{i}", "messages": turns, "videos": ["bar.mp4"], "answer": "right"}
        for i in range(3)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = f"{{type: '{tmp_path}/own.py:reward', sandbox: null}}"
    overrides = [
        f"model.path={tiny_model}",
        "model.dtype=float32",
        f"data.train={tmp_path}/rows.jsonl",
        "algorithm.name=grpo",
        f"rewards={{own: {own}, temporal_contrast: {{of: own, bonus: 0.25}}}}",
        "data.train_batch_size=3",
        "rollout={engine: hf, n: 4, max_response_length: 8, views: {view: shuffle, loss: none}}",
        f"trainer={{max_steps: 3, threads: 1, log_completions_steps: 1, "
        f"output_dir: {tmp_path}/run}}",
    ]
    run_training(load_config(None, overrides))
    rollouts = sorted((tmp_path / "run/rollouts").iterdir())
    completions = [
        c
        for path in rollouts
        for line in path.read_text().splitlines()
        for c in json.loads(line)["completions"]
    ]
    assert len(completions) == 3 * 3 * 4
    bonuses = {(c["components"]["own"], c["components"]["temporal_contrast"]) for c in completions}
    assert (1.0, 0.25) in bonuses
    assert (0.0, 0.25) not in bonuses


def test_data_without_videos_are_refused(tiny_model, digits, tmp_path):
    overrides = [
        f"model.path={tiny_model}",
        f"data.train={digits}/rl.jsonl",
        "rollout.engine=hf",
        "rollout.views={view: shuffle, loss: none}",
        "rewards={temporal_contrast: {of: math}}",
        "algorithm.name=grpo",
        f"trainer.output_dir={tmp_path}/run",
    ]
    with pytest.raises(ValueError, match=r"rollout\.views: .* no sample of .* has a video"):
        run_training(load_config(None, overrides))
    assert not (tmp_path / "run").exists()
