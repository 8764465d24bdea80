"""Grey and swapped pictures: what the model is shown, and how much its completions lose."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmr1.config.file import load_config
from mmr1.evaluation.benchmarks import run_evaluations
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.sampling.views import (
    VisionUse,
    _pieces,
    masked_logprobs,
    swapped,
    under,
    vision_use,
)
from mmr1.trainer.train import run_training
from mmr1.types import Completion, MediaRef, RolloutGroup
from mmr1.vision.images import load_image
from mmr1.vision.videos import load_video
from mmr1.vision.views import view_options
from tests.jsonl import read_jsonl
from tests.trainer.tiny_groups import new_model
from tests.vision.media import write_video


def test_a_blank_picture_keeps_its_size_and_nothing_else(tmp_path):
    Image.effect_noise((70, 42), 90).convert("RGB").save(tmp_path / "noise.png")
    shown = load_image(MediaRef("image", tmp_path / "noise.png", options={"blank": 1}))
    assert shown.size == (70, 42)
    assert set(np.asarray(shown).ravel().tolist()) == {127}
    clip = write_video(tmp_path / "bar.mp4", 8, 56, 56, fps=2)
    plain, metadata = load_video(MediaRef("video", clip))
    grey, same = load_video(MediaRef("video", clip, options={"blank": 1}))
    assert grey.shape == plain.shape
    assert set(grey.ravel().tolist()) == {127}
    assert same.frames_indices == metadata.frames_indices


def test_a_masked_picture_has_black_patches_and_is_else_the_same(tmp_path):
    Image.new("RGB", (700, 420), (9, 200, 30)).save(tmp_path / "green.png")

    def shown(seed: int, ratio: float = 0.6) -> np.ndarray:
        options = {"mask": ratio, "mask_seed": seed}
        return np.asarray(load_image(MediaRef("image", tmp_path / "green.png", options=options)))

    patches = shown(0).reshape(30, 14, 50, 14, 3).swapaxes(1, 2)
    black = (patches == 0).all((2, 3, 4))
    assert (black | (patches == (9, 200, 30)).all((2, 3, 4))).all()
    assert black.mean() == pytest.approx(0.6, abs=0.05)  # 1,500 patches: 4 standard errors
    assert (shown(0) == shown(0)).all()
    assert (shown(0) != shown(1)).any()
    assert (shown(0, 1.0) == 0).all()


def test_a_masked_video_has_the_same_patches_in_each_frame(tmp_path):
    clip = write_video(tmp_path / "bar.mp4", 8, 56, 56, fps=2)
    plain, _ = load_video(MediaRef("video", clip))
    options = {"mask": 0.5, "mask_seed": 3}
    shown, _ = load_video(MediaRef("video", clip, options=options))
    assert shown.shape == plain.shape
    changed = (shown != plain).any(1)  # of each frame, where
    sides = [side // 14 for side in shown.shape[2:]]
    black = (shown == 0).all(1).all(0).reshape(sides[0], 14, sides[1], 14).all(3).all(1)
    assert 0.3 < black.float().mean() < 0.7
    kept = ~black.repeat_interleave(14, 0).repeat_interleave(14, 1)
    assert not changed[:, kept].any()


def test_media_are_swapped_among_prompts_with_the_same_kinds(digit_samples, parts):
    family = parts[0]
    prompts = [family.render_prompt(sample) for sample in digit_samples[:3]]
    text = replace(prompts[0], shown=())
    video = replace(prompts[0], shown=(MediaRef("video", data=b"x"),))
    others = swapped([prompts[0], text, prompts[1], video, prompts[2]])
    assert list(others) == [0, 2, 4]
    assert [others[i].media for i in others] == [p.media for p in (*prompts[1:], prompts[0])]
    assert all(others[i].token_ids == p.token_ids for i, p in zip(others, prompts, strict=True))


def test_what_is_lost_equals_a_plain_forward_of_each_completion(parts):
    """transformers' own forward on the processor's own inputs, a completion at a time."""
    family, _, media, scored = parts
    model = new_model()
    groups = [replace(s.group, completions=s.group.completions[:2]) for s in scored[:2]]

    def logprobs(group, picture: Image.Image) -> list[torch.Tensor]:
        inputs = family.processor(
            text=[group.prompt.text], images=[picture], return_tensors="pt", do_resize=False
        )
        found = []
        for completion in group.completions:
            tokens = torch.from_numpy(completion.token_ids)[None]
            ids = torch.cat([inputs["input_ids"], tokens], dim=1)
            given = {k: v for k, v in inputs.items() if k not in ("input_ids", "attention_mask")}
            if "mm_token_type_ids" in given:
                given["mm_token_type_ids"] = torch.cat(
                    [given["mm_token_type_ids"], torch.zeros_like(tokens)], dim=1
                )
            with torch.no_grad():
                logits = model(input_ids=ids, **given).logits[0, -tokens.shape[1] - 1 : -1]
            logits[:, list(family.forbidden_ids)] = -torch.inf  # nothing samples placeholders
            found.append(logits.log_softmax(-1).gather(1, tokens[0][:, None])[:, 0].double())
        return found

    pictures = [family.decode_media(g.prompt.media[0]) for g in groups]
    plain = torch.cat([x for g, p in zip(groups, pictures, strict=True) for x in logprobs(g, p)])
    grey = [Image.new("RGB", p.size, (127, 127, 127)) for p in pictures]
    blanked = torch.cat([x for g, p in zip(groups, grey, strict=True) for x in logprobs(g, p)])
    other = torch.cat(
        [x for g, p in zip(groups, pictures[::-1], strict=True) for x in logprobs(g, p)]
    )
    policy = PackedModel(
        model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 10_000
    )
    found = vision_use(policy, groups)
    means = found.metrics
    assert means["vision/blank"] == pytest.approx(float((plain - blanked).mean()), abs=1e-5)
    assert means["vision/swapped"] == pytest.approx(float((plain - other).mean()), abs=1e-5)
    assert abs(means["vision/blank"]) > 1e-3
    lost = iter((plain - other).split([len(c.token_ids) for g in groups for c in g.completions]))
    pieces_of = found.pieces(groups, family.chat.completion_text)
    for index, group in enumerate(groups):
        for completion, pieces in zip(group.completions, pieces_of[index], strict=True):
            said = family.chat.completion_text(completion.token_ids)
            assert "".join(text for text, _ in pieces) == said
            values = next(lost)
            assert sum(nats for _, nats in pieces) == pytest.approx(float(values.sum()), abs=1e-3)
            if len(pieces) == len(values):
                assert [nats for _, nats in pieces] == pytest.approx(values.tolist(), abs=1e-4)


def test_pieces_are_whole_characters_and_have_all_nats(parts):
    tokenizer = parts[0].tokenizer
    text = "so 日本 is é 7</answer>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    completion = Completion(np.array(ids), np.zeros(len(ids), np.float32), text, False, 0)
    pieces = _pieces(tokenizer.decode, completion, [0.5] * len(ids))
    assert "".join(piece for piece, _ in pieces) == text
    assert sum(nats for _, nats in pieces) == 0.5 * len(ids)
    assert len(pieces) < len(ids)  # a tiny vocabulary has bytes of 日


def test_masked_logprobs_are_those_with_the_masked_picture(parts):
    """By a policy's forward on groups whose pictures were masked in their files."""
    family, model, media, scored = parts
    policy = PackedModel(
        model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 10_000
    )
    groups = [s.group for s in scored[:2]]
    text = RolloutGroup(replace(groups[0].prompt, shown=()), groups[0].completions)
    found = masked_logprobs(policy, [groups[0], text, groups[1]], 0.6, seed=5)
    n = len(groups[0].completions)
    assert found[n : 2 * n].isnan().all()
    for place, (group, rows) in enumerate(zip(groups, (found[:n], found[2 * n :]), strict=True)):
        picture = load_image(under(group.prompt, view_options("mask", 0.6, 5 + 2 * place)).media[0])
        data = io.BytesIO()
        picture.save(data, "PNG")
        shown = (MediaRef("image", data=data.getvalue()),)
        alone = replace(group, prompt=replace(group.prompt, shown=shown))
        expected = policy.logprobs([alone])
        width = expected.shape[1]
        torch.testing.assert_close(rows[:, :width], expected, rtol=0, atol=1e-5)
        assert (expected - policy.logprobs([group])).abs().max() > 1e-4


def test_prompts_without_media_have_no_figure(parts):
    family, model, media, scored = parts
    text = [RolloutGroup(replace(s.group.prompt, shown=()), s.group.completions) for s in scored]
    policy = PackedModel(
        model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 10_000
    )
    assert vision_use(policy, text) == VisionUse()
    assert VisionUse().metrics == {}


def run_of_digits(tiny_model, digits, tmp_path, *more: str) -> list[dict[str, Any]]:
    """The metrics of a run; a random model gets 0 for the format."""
    overrides = [
        f"model.path={tiny_model}",
        "model.dtype=float32",
        f"data.train={digits}/rl.jsonl",
        "data.train_batch_size=3",
        "rollout={engine: hf, n: 2, max_response_length: 8, max_prompt_length: 104}",
        "rewards={format: 1.0}",
        "trainer.threads=1",
        f"trainer.output_dir={tmp_path}/run",
        *more,
    ]
    run_training(load_config(None, overrides))
    return read_jsonl(tmp_path / "run/metrics.jsonl")


def test_a_run_measures_it_when_it_is_due(tiny_model, digits, tmp_path):
    every_second = ("trainer.max_steps=4", "trainer.vision_use_steps=2")
    rows = run_of_digits(tiny_model, digits, tmp_path, *every_second)
    assert [{"vision/blank", "vision/swapped"} <= row.keys() for row in rows] == [0, 1, 0, 1]
    assert rows[1]["time/vision"] > 0
    # The completions of a measured step are logged, each with what its tokens lost.
    for step in (2, 4):
        groups = read_jsonl(tmp_path / f"run/rollouts/step_{step:06d}.jsonl")
        for completion in (c for group in groups for c in group["completions"]):
            assert "".join(text for text, _ in completion["vision_use"]) == completion["text"]


def test_an_evaluation_measures_it(tiny_model, digits, tmp_path):
    """In the run and by ``mmr1 eval`` of its checkpoint: the same figures, of each completion."""
    held_out = (f"trainer.validation={{data: '{digits}/eval.jsonl', steps: 1}}", "eval.limit=5")
    views = ("eval.vision_use=true", "eval.views={blank: null}")
    asked = (*held_out, *views, "trainer.max_steps=1")
    (row,) = run_of_digits(tiny_model, digits, tmp_path, *asked)

    def stored(folder: Path) -> dict[str, float]:
        result = json.loads((folder / "eval/result.json").read_text())
        return {
            f"eval/{mode}/vision/{name}": result[mode]["vision"][name]
            for mode in ("greedy", "sampled")
            for name in ("blank", "swapped")
        }

    of_run = stored(tmp_path / "run")
    assert {name: row[name] for name in of_run} == of_run
    (last,) = (tmp_path / "run/checkpoints").glob("step_*")
    config = load_config(tmp_path / "run/config.yaml", [f"model.path={last}"]).for_command("eval")
    results, _ = run_evaluations(config.changed({"eval.output_dir": str(tmp_path / "eval")}))
    (result,) = results.values()
    assert stored(tmp_path) == pytest.approx(of_run)
    assert not any("vision" in row for row in result.rows if row["mode"] == "greedy_blank")
    for mode in ("greedy", "sampled"):
        rows = [row for row in result.rows if row["mode"] == mode]
        tokens = [row["tokens"] for row in rows]
        swapped_by_row = [row["vision"]["swapped"] for row in rows]
        mean = np.average(swapped_by_row, weights=tokens)
        assert result.modes[mode].vision["swapped"] == pytest.approx(mean)


def test_a_run_learns_from_what_a_masked_picture_changes(tiny_model, digits, tmp_path):
    term = ("trainer.max_steps=2", "algorithm.perception.coef=0.5", "optimizer.lr=1e-3")
    rows = run_of_digits(tiny_model, digits, tmp_path, *term)
    for row in rows:
        assert row["reward/mean"] == 0
        assert row["grad_norm"] > 0
        assert row["perception_kl"] > 0
        assert row["loss"] == pytest.approx(-0.5 * row["perception_kl"])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("trainer.vision_use_steps=2", r"trainer\.vision_use_steps measures"),
        ("algorithm.perception.coef=0.01", r"algorithm\.perception compares"),
    ],
)
def test_data_without_pictures_are_refused(tiny_model, tmp_path, setting, said):
    (tmp_path / "rows.jsonl").write_text(
        '{"version": 1, "id": "1", "messages": [{"role": "user", "content": "2 + 2"}], '
        '"answer": "4"}\n'
    )
    overrides = [
        f"model.path={tiny_model}",
        f"data.train={tmp_path}/rows.jsonl",
        "rollout.engine=hf",
        "rewards={format: 1.0}",
        f"trainer.output_dir={tmp_path}/run",
        setting,
    ]
    with pytest.raises(ValueError, match=said):
        run_training(load_config(None, overrides))
