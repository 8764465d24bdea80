"""SHA-256 digests of what small runs give, to show that a change of the code changes no number.

    python scripts/dev/digests.py --write /tmp/before.json
    python scripts/dev/digests.py --compare /tmp/before.json          # exit 1 names what differs
    python scripts/dev/digests.py --compare /tmp/before.json --only ppo --only sft

Every run is real and small: a model of 0.7M parameters on handwritten digits, a few steps. There is
one digest for every metric over the steps (times apart), for the completions' texts, token ids and
log-probs, rewards and advantages, and for each file of weights. Floats differ between processors,
so digests are compared on the machine that wrote them, and none is committed. With ``--only``,
what ``--write`` finds in the file of other runs stays there.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

Tree = dict[str, Any]
Digests = dict[str, str]

# An untrained model writes noise: a reward that tells its completions apart all the same, and a
# parser that reads a call in every turn.
PLUGINS = """\
def reward(completion: str, answer) -> float:
    return len(completion) % 7 / 7


def always_zoom(text: str) -> list:
    return [{"name": "zoom", "arguments": {"box": [0, 0, 20 + len(text) % 9, 28]}}]
"""
GRPO = {"algorithm": {"kl": {"coef": 0.05}, "ppo_epochs": 2, "ppo_mini_batch_size": 2}}
ROUNDS = {"rounds": {"count": 2, "prompts": 8, "preferred_by": "reward"}}
VLLM: Tree = {"full_determinism": True, "rollout": {"engine": "vllm"}}
NUCLEUS = {"top_p": 0.8, "temperature": 0.9}
TURNS = {"max_prompt_length": 96, "max_response_length": 120}
TOOLS: Tree = {
    "model": {"path": "FOLDER/brief"},
    "environment": {
        **{"type": "tools", "tools": ["zoom"], "parser": "FOLDER/noise.py:always_zoom"},
        **{"instructions": "", "max_turns": 3, "max_tokens_per_turn": 20, "workers": 1},
    },
}
RUNS: dict[str, tuple[str, Tree]] = {
    "grpo_hf": ("train", GRPO),
    "grpo_vllm": ("train", {**GRPO, **VLLM}),
    "grpo_two_ranks": ("train", {**GRPO, "resources": {"ranks": 2}}),
    "grpo_ahead": (
        "train",
        {**VLLM, "rollout": {"engine": "vllm", "max_off_policy_steps": 1}},
    ),
    "dapo": (
        "train",
        {
            "algorithm": {"name": "dapo"},
            "rollout": {"n": 2},  # some groups have no signal
            "data": {"curriculum": {"function": "noise", "floor": 0.5}},
            "trainer": {"validation": {"steps": 2}},
        },
    ),
    "ppo": ("train", {"algorithm": {"name": "ppo", "kl": {"coef": 0.05}, "ppo_epochs": 2}}),
    "remax": ("train", {"algorithm": {"name": "remax", "ptx": {"coef": 0.1, "batch_size": 2}}}),
    "replay": (
        "train",
        {"algorithm": {"filter_groups": {"type": "replay", "capacity": 8}}, "rollout": {"n": 2}},
    ),
    "lora": ("train", {**GRPO, "model": {"lora": {"rank": 4}}}),
    "bf16": ("train", {**GRPO, "model": {"dtype": "bfloat16"}}),
    "video": (
        "train",
        {**GRPO, "data": {"train": "FOLDER/videos.jsonl"}, "rollout": {"max_prompt_length": 96}},
    ),
    "views": (
        "train",
        {"rollout": {"views": {"view": "noise", "strength": 0.5, "share": 0.5, "loss": "clean"}}},
    ),
    "top_p_hf": ("train", {**GRPO, "rollout": NUCLEUS}),
    "top_p_vllm": ("train", {**GRPO, **VLLM, "rollout": {"engine": "vllm", **NUCLEUS}}),
    "tools_hf": ("train", {**TOOLS, "rollout": TURNS}),
    "tools_ahead": (
        "train",
        {**TOOLS, **VLLM, "rollout": {"engine": "vllm", "max_off_policy_steps": 1, **TURNS}},
    ),
    "sft": ("sft", {}),
    "dpo": ("dpo", {"dpo": {}}),
    "dpo_rounds": ("dpo", {"dpo": ROUNDS}),
}
"""The command and the sections that a run does not share with the others.

``FOLDER`` is that of the inputs.
"""
ONE_GROUP: Tree = {
    "data": {"train_batch_size": 1},
    "rollout": {"n": 8},
    "trainer": {"max_steps": 1, "max_tokens_per_gpu": 1000, "validation": None},
}
"""A step on a group in one micro-batch, of which ``baselines.py`` counts the passes."""
NEEDS = {
    **dict.fromkeys(("grpo_vllm", "grpo_ahead", "top_p_vllm", "tools_ahead"), "vllm"),
    "grpo_two_ranks": "ray",
}


def config_of(command: str, sections: Tree, folder: Path, out: Path) -> Tree:
    """The run's whole configuration."""
    pairs = command == "dpo" and "rounds" not in sections["dpo"]
    train = "sft" if command == "sft" else "pairs" if pairs else "rl"
    tree: Tree = {
        "model": {"path": str(folder / "model"), "dtype": "float32"},
        "data": {
            "train": str(folder / f"digits/{train}.jsonl"),
            "train_batch_size": 4,
        },
        "rollout": {
            "engine": "hf",
            "n": 4,
            "max_prompt_length": 52,
            "max_response_length": 12,
        },
        "rewards": {"noise": {"type": f"{folder}/noise.py:reward", "sandbox": None}},
        "scoring": {"workers": 1},
        "optimizer": {"lr": 1e-3, "scheduler": {"warmup_steps": 1}},
        "trainer": {
            "max_steps": 4,
            "output_dir": str(out),
            "log_completions_steps": 1,
            "logging_steps": 100,
            "threads": 1,
            "max_tokens_per_gpu": 100,  # several micro-batches a step
            "vision_token_cost": 1.0,
            "validation": {"data": str(folder / "digits/eval.jsonl")},
        },
        "eval": {"limit": 8, "accuracy_function": "noise"},
    }
    for name, keys in sections.items():
        tree[name] = {**tree.get(name, {}), **keys} if isinstance(keys, dict) else keys
    if ptx := sections.get("algorithm", {}).get("ptx"):
        tree["algorithm"]["ptx"] = {**ptx, "data": str(folder / "digits/sft.jsonl")}
    if validation := sections.get("trainer", {}).get("validation"):
        tree["trainer"]["validation"] = {"data": str(folder / "digits/eval.jsonl"), **validation}
    if command != "train":
        del tree["trainer"]["log_completions_steps"]
    samples = command == "train" or "rounds" in sections.get("dpo", {})
    unread = () if samples else ("rollout", "rewards", "eval")
    return {name: keys for name, keys in tree.items() if name not in unread}


def prepare(folder: Path) -> None:
    """The model, the data and the reward that the runs share."""
    from datasets_prep.generators import make
    from mmr1.vision.families.tiny import new_model

    new_model(folder / "model")
    make("digits", folder / "digits", 0)
    (folder / "noise.py").write_text(PLUGINS)
    prepare_turns(folder)
    prepare_videos(folder)
    rows = [json.loads(line) for line in (folder / "digits/rl.jsonl").read_text().splitlines()[:16]]
    for row in rows:
        row["meta"] = {"chosen": f"<answer>{row['answer']}</answer>", "rejected": "I do not know"}
    (folder / "digits/pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def prepare_turns(folder: Path) -> None:
    """A model whose turns end after about six tokens, so that a conversation has several."""
    shutil.copytree(folder / "model", folder / "brief")
    file = folder / "brief/generation_config.json"
    options = json.loads(file.read_text())
    file.write_text(json.dumps({**options, "eos_token_id": list(range(100, 200))}))


def prepare_videos(folder: Path) -> None:
    """Records of videos in which one digit follows another."""
    from datasets_prep.generators.digits import load_scans
    from datasets_prep.generators.video import two_scans, write_mp4

    scans, _ = load_scans()
    rows = []
    for number in range(8):
        write_mp4(folder / f"{number}.mp4", *two_scans(scans[number], scans[number + 9]))
        video = {"type": "video", "path": f"{number}.mp4", "options": {"min_pixels": 3136}}
        asked = [video, {"type": "text", "text": "Which digit comes first?"}]
        message = {"role": "user", "content": asked}
        rows.append({"version": 1, "id": str(number), "messages": [message], "answer": "7"})
    (folder / "videos.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(name: str, folder: Path) -> Digests:
    """Run ``name`` in this process; the digests of what it gave."""
    command, sections = RUNS[name]
    out = folder / "runs" / name
    config = folder / f"{name}.yaml"
    keys = json.dumps(config_of(command, sections, folder, out))
    config.write_text(keys.replace("FOLDER", str(folder)))
    tokens = record_completions()
    from mmr1 import cli

    sys.argv = ["mmr1", command, str(config)]
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{name} ended with {end.code}") from end
    return digests_of(out, tokens)


def record_completions() -> list[tuple[list[int], list[float]]]:
    """A list that grows by the token ids and log-probs of each completion that the run logs."""
    from mmr1.trainer.runs.output import RunDirectory

    seen: list[tuple[list[int], list[float]]] = []
    log_rollouts = RunDirectory.log_rollouts

    def recording(self: Any, step: int, scored: Iterable[Any], *args: Any, **kwargs: Any) -> Path:
        groups = list(scored)
        for completion in (c for group in groups for c in group.group.completions):
            seen.append((completion.token_ids.tolist(), completion.logprobs.tolist()))
        return log_rollouts(self, step, groups, *args, **kwargs)

    RunDirectory.log_rollouts = recording  # type: ignore[method-assign]
    return seen


def digests_of(out: Path, tokens: list[tuple[list[int], list[float]]]) -> Digests:
    """Digests of the metrics, the completions and the weights in a run's folder."""
    from safetensors.torch import load_file

    steps = rows_of([out / "metrics.jsonl"])
    keys = sorted({key for step in steps for key in step if not key.startswith("time/")})
    found = {f"metric {key}": sha256(step.get(key) for step in steps) for key in keys}
    prompts = rows_of([*out.glob("rollouts/*.jsonl"), *out.glob("validation/*.jsonl")])
    completions = [completion for row in prompts for completion in row["completions"]]
    for key in ("text", "reward", "components", "advantage", "truncated") if completions else ():
        found[f"completions {key}"] = sha256(c.get(key) for c in completions)
    if tokens:
        found["completions token ids"] = sha256(ids for ids, _ in tokens)
        found["completions log-probs"] = sha256(logprobs for _, logprobs in tokens)
    last = max((out / "checkpoints").glob("step_*"))
    for file in sorted(last.rglob("*.safetensors")):
        # Of names, types and values: how the file lays them out does not matter.
        facts = sorted((name, *facts_of(value)) for name, value in load_file(file).items())
        found[f"weights {file.relative_to(last)}"] = sha256(facts)
    return found


def facts_of(value: Any) -> tuple[str, tuple[int, ...], str]:
    """The type, the shape and the bytes of a tensor, of a type that numpy may not have."""
    import torch

    content = value.flatten().view(torch.uint8).numpy().tobytes().hex()
    return str(value.dtype).removeprefix("torch."), tuple(value.shape), content


def rows_of(files: Iterable[Path]) -> list[Any]:
    """The rows of JSON Lines files, in the order of their names."""
    return [json.loads(line) for file in sorted(files) for line in file.read_text().splitlines()]


def sha256(values: Iterable[Any]) -> str:
    """The digest of values that JSON can write; floats are written in full."""
    return hashlib.sha256(json.dumps(list(values), sort_keys=True).encode()).hexdigest()


def differences(before: Mapping[str, Digests], after: Mapping[str, Digests]) -> list[str]:
    """One line for each run with the names of what differs."""
    lines = []
    for name, found in after.items():
        known = before.get(name, {})
        keys = sorted(key for key in known | found if known.get(key) != found.get(key))
        if keys:
            lines.append(f"{name}: {', '.join(keys)}")
    return lines


def collected(names: Iterable[str]) -> dict[str, Digests]:
    """The digests of these runs; one whose package is missing is left out, and said."""
    found: dict[str, Digests] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        # A process for each run: nothing is left of the one before.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
            for name in names:
                if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
                    print(f"{name}: left out, {NEEDS[name]} is not installed")
                    continue
                found[name] = pool.submit(run, name, Path(folder)).result()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=RUNS, help="this run; may be repeated")
    aim = parser.add_mutually_exclusive_group(required=True)
    aim.add_argument("--write", type=Path, help="the JSON file to write the digests to")
    aim.add_argument("--compare", type=Path, help="a file that --write wrote")
    args = parser.parse_args()
    found = collected(args.only or RUNS)
    if args.write:
        others = json.loads(args.write.read_text()) if args.only and args.write.is_file() else {}
        args.write.write_text(json.dumps({**others, **found}, indent=1))
        return 0
    lines = differences(json.loads(args.compare.read_text()), found)
    print("\n".join(lines) or f"equal: {', '.join(found)}")
    return 1 if lines else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
