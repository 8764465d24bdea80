"""Audit sound runs of random configurations: each must be equal, or be refused for a known reason.

    python scripts/dev/audit_random.py --count 200 --out /tmp/audits.jsonl
    python scripts/dev/audit_random.py --only 17 --out /tmp/one.jsonl    # repeat one of them

A configuration is one value of each axis, drawn by its number alone. What ``mmr1 train`` refuses
is drawn again. Each run trains a model of 0.7M parameters on a CPU for one to three steps, then
``mmr1 audit`` recomputes the last recorded step. The exit code is 1 if one of them differs, or if
one without an untranslated key cannot be recomputed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

Keys = Sequence[str]
NOISE = """\
def noise(completion: str, answer) -> float:
    return len(completion) % 7 / 7


def vowels(completion: str, answer) -> float | None:
    count = sum(letter in "aeiou" for letter in completion)
    return None if count == 3 else count / 4


def steps(completion: str, sample) -> list[tuple[int, float]]:
    ends = [end for end in (9, 21, len(completion)) if end <= len(completion)]
    return [(end, (end * 7 + len(completion)) % 5 / 4) for end in sorted(set(ends))]
"""
PRESETS = (
    *("grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "clip_cov", "kl_cov", "rloo", "gpg"),
    *("reinforce", "remax", "ppo", "reinforce_pp", "reinforce_pp_baseline"),
)
ESTIMATORS = ("k1", "k2", "k3", "absolute", "k1_forward", "k3_forward")


def _keys(section: str, *texts: str) -> list[Keys]:
    """Values of an axis: the default and, for each text, its keys below a section."""
    return [(), *([f"{section}.{key}" for key in text.split()] for text in texts)]


AXES: Mapping[str, Sequence[Keys]] = {
    "data": [(), ("data.train=HERE/mixed.jsonl",), ("data.train=HERE/text.jsonl",)],
    "reading": _keys(
        "data",
        "system_prompt=Answer.",
        "image={min_pixels:784,max_pixels:3136}",
        "video={fps:1.0,max_frames:4}",
        "video={num_frames:4}",
    ),
    "algorithm": [
        *[(f"algorithm={name}",) for name in PRESETS],
        ("algorithm=process_grpo", "algorithm.advantage.step_rewards=HERE/noise.py:steps"),
        (
            "algorithm=on_policy_distillation",
            "algorithm.advantage.teacher={type: model, path: HERE/teacher}",
        ),
        *[(f"algorithm.advantage={name}",) for name in ("gdpo", "pass_at_k", "optimal_baseline")],
        *[(f"algorithm.advantage.{key}",) for key in ("scale_rewards=batch", "epsilon=0.01")],
        *[(f"algorithm.loss={name}",) for name in ("gmpo", "topr", "sequence_ppo", "reinforce")],
        ("algorithm.loss=dppo", "algorithm.loss.delta=0.0001"),
        ("algorithm.loss=ppo_kl", "algorithm.loss.coef=0.5"),
        ("algorithm.loss=reinforce", "algorithm.loss.importance=sequence"),
        ("algorithm.advantage.reward_clip_range=[0.2, 0.8]",),
        ("algorithm=reinforce", "algorithm.advantage.gamma=0.95"),
        ("algorithm=ppo", "algorithm.advantage.lam=0.9", "algorithm.advantage.gamma=0.97"),
    ],
    "normaliser": _keys(
        "algorithm.loss",
        *[f"agg_mode={mode}" for mode in ("token-mean", "seq-mean-token-sum", "token-sum")],
        "agg_mode=seq-mean-token-sum-norm",
        "agg_mode=token-mean agg_scope=rollout",
        "clip_ratio_low=0.001 clip_ratio_high=0.002",
        "clip_ratio_dual=1.5",
        "top_entropy_quantile=0.3",
    ),
    "kl": [
        (),
        (),
        *[(f"algorithm.kl={{type: loss, coef: 0.1, estimator: {e}}}",) for e in ESTIMATORS],
        ("algorithm.kl={type: reward, coef: 0.1, estimator: k3}",),
        ("algorithm.kl={type: loss, coef: 0.1, use_bias_correction_kl: true}",),
        ("algorithm.kl={type: full, coef: 0.1, jsd_beta: 0.5}",),
        ("algorithm.kl={coef: 0.1, reference: {type: model, path: HERE/teacher}}",),
        ("algorithm.kl={coef: 0.1, reference: {type: moving, sync_steps: 5}}",),
    ],
    "terms": [
        *[(), (), ("algorithm.entropy.coef=0.01",), ("algorithm.perception.coef=0.05",)],
        ("algorithm.mask_truncated_completions=true",),
    ],
    "updates": _keys(
        "algorithm",
        *["ppo_epochs=2", "ppo_mini_batch_size=2", "ppo_mini_batch_size=1"],
        "ppo_epochs=2 ppo_mini_batch_size=2",
    ),
    "correction": _keys(
        "algorithm.rollout_correction",
        "importance_sampling=null",
        "importance_sampling.level=token",
        "importance_sampling.level=sequence",
        "rejection_sampling={level:geometric,threshold:1.0000001}",
        "off_policy_mask_threshold=0.000001",
    ),
    "sampling": _keys(
        "rollout",
        *["temperature=0.7", "top_p=0.7", "top_k=6", "min_p=0.2", "top_p=0.8 temperature=1.3"],
        "n=2",
    ),
    "length": _keys("rollout", "max_response_length=5", "max_response_length=32")
    + [("rollout.stop=['a', 'e', '1', '0']",)] * 3,
    "weights": [
        *[(), (), (), ("model.freeze_vision_tower=true",), ("model.dtype=bfloat16",)],
        *[("model.lora.rank=4",), ("model.lora={rank: 2, target_modules: [q_proj, up_proj]}",)],
    ],
    "optimizer": _keys(
        "optimizer",
        *["weight_decay=0.1", "weight_decay=0.1 decay_norms_and_biases=false"],
        *["betas=[0.8,0.95]", "max_grad_norm=0.01"],
    ),
    "schedule": _keys(
        "optimizer.scheduler",
        *["warmup_steps=0", "warmup_steps=4", "type=cosine warmup_steps=0.3"],
        "type=linear min_lr=0.0001 steps=9",
    ),
    "step": [(), (), ("trainer.max_steps=2",), ("trainer.max_steps=3",)],
    "batches": _keys("trainer", "max_tokens_per_gpu=100"),
    "rewards": [(), (), ("rewards.vowels={type: HERE/noise.py:vowels, weight: 0.5}",)],
    "untranslated": [
        *[()] * 24,
        ("algorithm.advantage.normalize_rewards=true",),
        ("algorithm.ptx={coef: 0.1, data: HERE/sft.jsonl, batch_size: 4}",),
    ],
}


def drawn(number: int, attempt: int) -> dict[str, Keys]:
    """Draw a configuration: the chosen value of each axis that changes something."""
    source = random.Random(f"{number}/{attempt}")
    chosen = {axis: source.choice(values) for axis, values in AXES.items()}
    return {axis: keys for axis, keys in chosen.items() if keys}


def prepared(here: Path) -> Path:
    """Write models, rows and rewards into a folder; return the base configuration's file."""
    from datasets_prep.generators import make
    from datasets_prep.generators.digits import load_scans
    from datasets_prep.generators.video import two_scans, write_mp4
    from mmr1.vision.families.tiny import new_model

    new_model(here / "model")
    new_model(here / "teacher", seed=1)
    make("digits", here / "digits", 0)
    (here / "noise.py").write_text(NOISE)
    rows = [json.loads(row) for row in (here / "digits/rl.jsonl").read_text().splitlines()[:48]]
    scans, _ = load_scans()
    mixed: list[dict[str, Any]] = []
    for n, row in enumerate(rows):
        picture = "digits/" + row["messages"][0]["content"][0]["path"]
        row["messages"][0]["content"][0]["path"] = picture
        write_mp4(here / f"{n}.mp4", *two_scans(scans[n], scans[n + 9]))
        content: list[Any] = [
            [{"type": "video", "path": f"{n}.mp4", "options": {"min_pixels": 3136}}],
            [{"type": "image", "path": picture}, {"type": "image", "path": picture}],
            [],
        ][n % 3]
        content.append({"type": "text", "text": f"What is {n} plus one?"})
        message = {"role": "user", "content": content}
        mixed.append({"version": 1, "id": str(n), "messages": [message], "answer": "7"})
    texts = [row for row in mixed if len(row["messages"][0]["content"]) == 1]
    demonstrations = [
        {**row, "messages": [*row["messages"], {"role": "assistant", "content": "7"}]}
        for row in rows
    ]
    for name, written in (
        ("rl", rows),
        ("mixed", mixed),
        ("text", texts),
        ("sft", demonstrations),
    ):
        (here / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in written))
    base = {
        "model": {"path": str(here / "model"), "dtype": "float32"},
        "data": {"train": str(here / "rl.jsonl"), "train_batch_size": 4},
        "rollout": {"engine": "hf", "n": 4, "max_response_length": 16},
        "rewards": {"noise": {"type": f"{here}/noise.py:noise", "sandbox": None}},
        "scoring": {"workers": 1},
        "optimizer": {"lr": 1e-3},
        "trainer": {"max_steps": 1, "threads": 1, "checkpoints": {"save_steps": 1}},
    }
    (here / "base.yaml").write_text(yaml.safe_dump(base))
    return here / "base.yaml"


def command(*arguments: object) -> tuple[int, str]:
    """Run ``mmr1`` in this process; return the exit code and what it printed."""
    from mmr1 import cli

    printed, code = io.StringIO(), 0
    with (
        patch.object(sys, "argv", ["mmr1", *map(str, arguments)]),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
    return code, printed.getvalue()


def audited(number: int, base: Path) -> dict[str, Any]:
    """Train and audit the configuration of a number; return what came of it."""
    here, start = base.parent, time.perf_counter()
    for attempt in range(100):
        axes = drawn(number, attempt)
        step = "--step", int((axes.get("step") or ["trainer.max_steps=1"])[0][-1])
        keys = [key.replace("HERE", str(here)) for each in axes.values() for key in each]
        keys.append(f"seed={number}")
        run = here / f"run{number}"
        code, out = command("train", base, f"trainer.output_dir={run}", *keys)
        if code == 0:
            break
        shutil.rmtree(run, ignore_errors=True)
        if "Traceback" in out:
            return {"number": number, "verdict": "crashed", "axes": axes, "out": out[-3000:]}
    code, out = command("audit", run, *step)
    shutil.rmtree(run, ignore_errors=True)
    verdict = {0: "equal", 1: "differs", 2: "not recomputed"}.get(code, "crashed")
    if verdict == "not recomputed" and "untranslated" in axes:
        verdict = "refused rightly"
    seconds = round(time.perf_counter() - start, 1)
    kept = "" if verdict in ("equal", "refused rightly") else out[-3000:]
    return {
        **{"number": number, "verdict": verdict, "refused": attempt, "seconds": seconds},
        **{"cannot_tell": out.count("cannot tell"), "axes": axes, "out": kept},
    }


def numbers(arguments: argparse.Namespace) -> Iterator[int]:
    """Numbers that are not in the file of results yet."""
    if arguments.only:
        yield from arguments.only
        return
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    done = {json.loads(line)["number"] for line in lines}
    yield from (n for n in range(arguments.count) if n not in done)


def main() -> int:
    """Audit the configurations; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", type=int, action="append", help="repeat this one; repeatable")
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON lines; continued if it exists"
    )
    arguments = parser.parse_args()
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        base = prepared(Path(folder))
        for number in numbers(arguments):
            result = audited(number, base)
            verdicts[result["verdict"]] += 1
            with arguments.out.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(number, result["verdict"], result.get("seconds"), *result["axes"], flush=True)
    print(dict(verdicts))
    return int(bool(set(verdicts) - {"equal", "refused rightly"}))


if __name__ == "__main__":
    sys.exit(main())
