"""Compare ``mmr1 migrate`` on the scripts of a checkout with the project's own reading.

    python scripts/dev/migration_truth.py CHECKOUT ... [--libraries FOLDER ...] [--cells]

The truth is read by another road. Bash itself expands each script: its built-ins alone run, and
every other command is written down instead of being started. Defaults are those of the project's
own dataclasses, parsers and YAML, and of the libraries below ``--libraries`` (transformers and TRL
of the project's time, unpacked wheels). Constants of a trainer are read from its text.

A placeholder as ``<PATH>``, which bash takes for a redirection, and a comment behind a backslash
are mended before. Variables that a cluster would set are given as 8 processes; others that are
not set are empty.

A table of the scripts is printed, then one of the checkouts. A cell is "equal", "said" (another
value here, and a note names the key), or "wrong". Exits with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from mmr1.config import Config
from mmr1_contrib.migrate.command import Migrated, migrate_file
from mmr1_contrib.migrate.source import flattened

HANDLER = """
command_not_found_handle() {
    { printf '%s\\0' "$@"; printf '\\n\\0'; } >&9
}
cd() { :; }
source() { :; }
set() { builtin set "$@"; builtin set +u; }
"""
START = "exec 9>out; PATH=/nonexistent; trap wait EXIT; trap '' PIPE;"
"""A pipe's reader may be gone before its writer is written down."""
CLUSTER = {"ARNOLD_WORKER_GPU": "8", "ARNOLD_WORKER_NUM": "1", "NODE_RANK": "0", "RANK": "0"}
Row = dict[str, tuple[Any, Any, str]]
"""Of each setting: theirs, ours, and a key of theirs that a note would name."""


def commands_of(script: Path) -> list[list[str]]:
    """The commands of a script as bash expands them; none of them runs."""
    text = re.sub(r"(?<!<)<([A-Za-z][\w./ -]*)>(?=\s)", r"'<\1>'", script.read_text() + "\n")
    text = re.sub(r"\\[ \t]+(#.*)?$", r"\\", text, flags=re.M)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "env").write_text(HANDLER)
        (Path(folder) / script.name).write_text(text)
        subprocess.run(
            ["/bin/bash", "-c", f'{START} . "./$0"', script.name],
            cwd=folder, env={"BASH_ENV": "./env", "HOME": "/root", **CLUSTER},
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        words = (Path(folder) / "out").read_text().split("\0")
    commands: list[list[str]] = [[]]
    for word in words:
        if word == "\n":
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def options_of(words: list[str]) -> dict[str, Any]:
    """The options as argparse reads them."""
    options: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            options[name] = yaml.safe_load(value) if equals else True
        elif name and word.strip():
            value = number(word)
            options[name] = value if options[name] is True else f"{options[name]} {value}"
    return options


def number(text: str) -> Any:
    try:
        return (
            float(text) if re.fullmatch(r"[+-]?[\d.]+[eE][+-]?\d+", text) else yaml.safe_load(text)
        )
    except yaml.YAMLError:
        return text


def fields_of(file: Path) -> dict[str, Any]:
    """Literal defaults of the annotated fields of all classes in a file, also in ``field()``."""
    values: dict[str, Any] = {}
    if not file.is_file():
        return values
    for node in ast.walk(ast.parse(file.read_text())):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        value = node.value
        if isinstance(value, ast.Call):
            value = next((k.value for k in value.keywords if k.arg == "default"), None)
        try:
            values[node.target.id] = ast.literal_eval(value) if value else None
        except ValueError:
            continue
    return values


# --- R1-V and its forks ---------------------------------------------------------------------------


def of_fork(argv: list[str], script: Path, root: Path, libraries: list[Path]) -> dict[str, Any]:
    """The settings that the fork's own trainer takes."""
    at = next(i for i, word in enumerate(argv) if word.endswith(".py"))
    launcher, given = options_of(argv[:at]), options_of(argv[at + 1 :])
    program = next(p for p in nearest(script, root, argv[at]))
    text, package = program.read_text(), program.parent
    setup = next((p / "setup.py" for p in program.parents if (p / "setup.py").is_file()), None)
    pinned = re.search(r'"trl==([\d.]+)"', setup.read_text()) if setup else None
    version = pinned[1] if pinned else "0.15.2"
    own = re.search(r"from open_r1.trainer import .*\bGRPOConfig", text)
    library = [
        *(fields_of(found) for folder in libraries for found in folder.rglob("training_args.py")),
        *(
            fields_of(found)
            for folder in libraries
            for found in folder.rglob(f"*{version}*/**/grpo_config.py")
            if not own
        ),
    ]
    if len(library) < (1 if own else 2):
        sys.exit(f"{script}: --libraries has no transformers, or no TRL {version}")
    flat: dict[str, Any] = {}
    for values in (*library, fields_of(package / "trainer/grpo_config.py") if own else {},
                   fields_of(program), given):  # fmt: skip
        flat.update(values)
    by_vllm = bool(flat["use_vllm"])
    chosen = re.search(
        r"^ +trainer_cls = (\w+)(?: if not training_args.use_vllm else (\w+))?", text, re.M
    )
    name = chosen[2] if by_vllm and chosen[2] else chosen[1]
    trainer = next(
        f.read_text() for f in (package / "trainer").glob("*.py")
        if re.search(rf"^class {name}\(", f.read_text(), re.M)
    )  # fmt: skip
    sampler = "SamplingParams(" if by_vllm and "SamplingParams(" in trainer else "GenerationConfig("
    block = trainer[
        trainer.index(
            f"self.{'sampling_params' if 'Sampl' in sampler else 'generation_config'} = "
        ) :
    ][:400]
    block = block[: block.index(")\n") if ")\n" in block else 400]

    def sampled(key: str, default: Any) -> Any:
        found = re.search(rf"\b{key}=([\w.]+)", block)
        if not found:
            return default
        return flat[found[1].partition(".")[2]] if found[1].startswith("args.") else float(found[1])

    processes = int(launcher.get("nproc_per_node", 1)) * int(launcher.get("nnodes", 1))
    rows = flat["per_device_train_batch_size"] * flat["gradient_accumulation_steps"] * processes
    per_prompt = flat["num_generations"] if "RepeatRandomSampler" in trainer else 1
    clipped = "self.epsilon" in trainer
    pixels = flat["max_pixels"]
    process = next(nearest(script, root, "qwen_vl_utils/vision_process.py"), None)
    if process and "process_vision_info" in trainer:
        cap = re.search(r"^MAX_PIXELS = ([\d* ]+)$", process.read_text(), re.M)
        pixels = min(pixels, eval(cap[1]))  # digits and * alone
    assert re.search(r"\.sum\(dim=1\) / completion_mask\.sum\(dim=1\)\s*\)\.mean\(\)", trainer)
    assert "self.beta * per_token_kl" in trainer
    bounded = "self.max_prompt_length = None" not in trainer
    return {
        "model_name_or_path": flat["model_name_or_path"],
        "per_device_train_batch_size": rows // per_prompt,
        "num_generations": flat["num_generations"],
        "learning_rate": flat["learning_rate"],
        "lr_scheduler_type": flat["lr_scheduler_type"],
        "warmup_steps": flat["warmup_steps"],
        "weight_decay": flat["weight_decay"],
        "adam_beta2": flat["adam_beta2"],
        "max_grad_norm": flat["max_grad_norm"],
        "beta": flat["beta"],
        "loss": "seq-mean-token-mean",
        "epsilon": flat.get("epsilon", 0.2) if clipped else 0.2,
        "epsilon_high": (flat.get("epsilon_high") or flat.get("epsilon", 0.2)) if clipped else 0.2,
        "num_iterations": flat.get("num_iterations", 1) if clipped else 1,
        "temperature": sampled("temperature", 1.0),
        "top_p": sampled("top_p", 1.0),
        "top_k": 0 if "Sampl" in sampler else 50,
        "max_completion_length": flat["max_completion_length"],
        "max_prompt_length": flat["max_prompt_length"] if bounded else None,
        "max_steps": flat["max_steps"] if flat["max_steps"] > 0 else None,
        "num_train_epochs": None if flat["max_steps"] > 0 else flat["num_train_epochs"],
        "max_pixels": pixels,
        "min_pixels": flat["min_pixels"],
        "freeze_vision_modules": bool(flat.get("freeze_vision_modules")),
        "lora_r": flat.get("lora_r", 16) if flat.get("use_peft") else None,
        "temporal": bool(flat.get("temporal")),
        "len_control": bool(flat.get("len_control")),
        "save_steps": flat["save_steps"],
        "seed": flat["seed"],
    }  # fmt: skip


def nearest(script: Path, root: Path, program: str) -> Iterator[Path]:
    for folder in script.parents:
        yield from (found for found in sorted(folder.rglob(program)) if found.is_file())
        if folder == root:
            return


def fork_of_ours(config: Config) -> dict[str, Any]:
    of, roll, opt = config.algorithm, config.rollout, config.optimizer
    names = config.rewards
    return {
        "model_name_or_path": config.model.path,
        "per_device_train_batch_size": config.data.train_batch_size,
        "num_generations": roll.n,
        "learning_rate": opt.lr,
        "lr_scheduler_type": opt.scheduler.type,
        "warmup_steps": opt.scheduler.warmup_steps,
        "weight_decay": opt.weight_decay,
        "adam_beta2": opt.betas[1],
        "max_grad_norm": opt.max_grad_norm,
        "beta": 0.0 if of.kl is None else of.kl.coef,
        "loss": of.loss.aggregation,
        "epsilon": of.loss.clip_ratio_low,
        "epsilon_high": of.loss.clip_ratio_high,
        "num_iterations": of.ppo_epochs,
        "temperature": roll.temperature,
        "top_p": roll.top_p,
        "top_k": roll.top_k,
        "max_completion_length": roll.max_response_length,
        "max_prompt_length": roll.max_prompt_length,
        "max_steps": config.trainer.max_steps,
        "num_train_epochs": None if config.trainer.max_steps else config.trainer.total_epochs,
        "max_pixels": config.data.image.max_pixels,
        "min_pixels": config.data.image.min_pixels,
        "freeze_vision_modules": config.model.freeze_vision_tower,
        "lora_r": None if config.model.lora is None else config.model.lora.rank,
        "temporal": "temporal_contrast" in names,
        "len_control": "length_bonus" in names,
        "save_steps": config.trainer.checkpoints.save_steps,
        "seed": config.seed,
    }


# --- verl and EasyR1 ------------------------------------------------------------------------------


def hydra(words: list[str], base: Mapping[str, Any]) -> dict[str, Any]:
    """The composed configuration, flat, with interpolations resolved where they can be."""
    tree = OmegaConf.create(dict(base))
    for word in words:
        key, equals, value = word.lstrip("+").partition("=")
        if equals and not word.startswith("-"):
            OmegaConf.update(tree, key, number(value), force_add=True)
    plain = OmegaConf.to_container(tree)
    flat = flattened(plain)
    for key, value in flat.items():
        if isinstance(value, str) and "${" in value:
            try:
                flat[key] = OmegaConf.select(tree, key)
            except Exception:  # a resolver of theirs
                flat[key] = None
    return flat


A, M, R = "actor_rollout_ref.actor.", "actor_rollout_ref.model.", "actor_rollout_ref.rollout."
VERL = {
    "data.train_batch_size": "data.train_batch_size",
    f"{A}ppo_mini_batch_size": "algorithm.ppo_mini_batch_size",
    f"{A}ppo_epochs": "algorithm.ppo_epochs",
    f"{R}n": "rollout.n",
    f"{R}temperature": "rollout.temperature",
    f"{R}top_p": "rollout.top_p",
    "data.max_prompt_length": "rollout.max_prompt_length",
    "data.max_response_length": "rollout.max_response_length",
    f"{A}optim.lr": "optimizer.lr",
    f"{A}optim.weight_decay": "optimizer.weight_decay",
    f"{A}grad_clip": "optimizer.max_grad_norm",
    f"{A}clip_ratio_low": "algorithm.loss.clip_ratio_low",
    f"{A}clip_ratio_high": "algorithm.loss.clip_ratio_high",
    f"{A}clip_ratio_c": "algorithm.loss.clip_ratio_dual",
    f"{A}loss_agg_mode": "algorithm.loss.agg_mode",
    f"{A}entropy_coeff": "algorithm.entropy.coef",
    "trainer.total_epochs": "trainer.total_epochs",
}
E_ = "worker.actor."
EASYR1 = {
    "data.rollout_batch_size": "data.train_batch_size",
    f"{E_}global_batch_size": "algorithm.ppo_mini_batch_size",
    f"{E_}ppo_epochs": "algorithm.ppo_epochs",
    "worker.rollout.n": "rollout.n",
    "worker.rollout.temperature": "rollout.temperature",
    "worker.rollout.top_p": "rollout.top_p",
    "data.max_prompt_length": "rollout.max_prompt_length",
    "data.max_response_length": "rollout.max_response_length",
    "data.min_pixels": "data.image.min_pixels",
    "data.max_pixels": "data.image.max_pixels",
    "data.seed": "seed",
    f"{E_}optim.lr": "optimizer.lr",
    f"{E_}optim.weight_decay": "optimizer.weight_decay",
    f"{E_}max_grad_norm": "optimizer.max_grad_norm",
    f"{E_}clip_ratio_low": "algorithm.loss.clip_ratio_low",
    f"{E_}clip_ratio_high": "algorithm.loss.clip_ratio_high",
    f"{E_}clip_ratio_dual": "algorithm.loss.clip_ratio_dual",
    f"{E_}model.model_path": "model.path",
    f"{E_}model.freeze_vision_tower": "model.freeze_vision_tower",
    "trainer.total_epochs": "trainer.total_epochs",
}


def at(config: Config, key: str) -> Any:
    value: Any = config.model_dump()
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def of_verl(argv: list[str], root: Path) -> dict[str, Any]:
    base = OmegaConf.load(root / "verl/trainer/config/_generated_ppo_trainer.yaml")
    module = next(w for w in argv if re.search(r"\.(main_\w+|fully_async_main)$", w))
    flat_words = argv[argv.index(module) + 1 :]
    program = root / (module.replace(".", "/") + ".py")
    named = re.search(r'config_name="(\w+)"', program.read_text())
    name = next(
        (w.partition("=")[2].strip("'") for w in flat_words if w.startswith("--config-name=")),
        named[1],
    )
    for file in sorted(root.rglob(f"{name.removesuffix('.yaml')}.yaml")):
        if "verl/trainer" not in str(file):
            base = OmegaConf.merge(base, {k: v for k, v in yaml.safe_load(file.read_text()).items()
                                          if k not in ("defaults", "hydra")})  # fmt: skip
    composed = hydra(flat_words, base)
    if "async_training.require_batches" in composed:  # fully_async_rollouter.py:121,163-167
        steps = composed["async_training.trigger_parameter_sync_step"]
        required = composed[f"{A}ppo_mini_batch_size"] * composed["async_training.require_batches"]
        composed["data.train_batch_size"] = required * steps
        composed["trainer.total_training_steps"] = int(
            composed["rollout.total_rollout_steps"] / (required * steps)
        )
    return composed


def of_easyr1(argv: list[str], root: Path) -> dict[str, Any]:
    words = argv[argv.index("verl.trainer.main") + 1 :]
    config = next(w.partition("=")[2] for w in words if w.startswith("config="))
    defaults = {}
    for section, file in {
        "data": "trainer/config.py", "algorithm": "trainer/config.py",
        "trainer": "trainer/config.py", "worker.actor": "workers/actor/config.py",
        "worker.rollout": "workers/rollout/config.py",
    }.items():  # fmt: skip
        defaults[section] = fields_of(root / "verl" / file)
    tree = OmegaConf.merge(
        OmegaConf.create({"worker": {"actor": defaults["worker.actor"],
                                     "rollout": defaults["worker.rollout"]},
                          "data": defaults["data"], "algorithm": defaults["algorithm"]}),
        OmegaConf.load(root / config),
    )  # fmt: skip
    return hydra([w for w in words if not w.startswith("config=")], tree)


def hydra_row(theirs: Mapping[str, Any], config: Config, table: Mapping[str, str]) -> Row:
    row: Row = {}
    for key, ours in table.items():
        value, mine = theirs.get(key), at(config, ours)
        if ours.endswith("ppo_mini_batch_size"):
            batch = config.data.train_batch_size
            mine = mine or batch
            value = min(value, batch) if value else value
        if ours.endswith("entropy.coef"):
            mine = mine or 0
        row[key] = (value, mine, key)
    if "trainer.total_epochs" in row and theirs.get("trainer.total_training_steps"):
        steps = theirs["trainer.total_training_steps"]
        row["trainer.total_epochs"] = (steps, config.trainer.max_steps, "total_training_steps")
    loss = config.algorithm.loss.type
    if loss in ("gspo", "sapo", "cispo", "clip_cov", "kl_cov", "reinforce"):
        unread = {"gspo": ("agg_mode", "dual"), "sapo": ("clip", "agg_mode"), "kl_cov": ("clip",)}
        for key in list(row):
            if any(part in table[key] for part in unread.get(loss, ("dual", "clip_ratio"))):
                del row[key]  # that loss does not read it
    kl = config.algorithm.kl
    if f"{A}use_kl_loss" in theirs:
        in_loss = theirs[f"{A}use_kl_loss"] and theirs[f"{A}kl_loss_coef"]
        in_reward = theirs["algorithm.use_kl_in_reward"] and theirs["algorithm.kl_ctrl.kl_coef"]
        row["kl"] = (in_loss or in_reward or 0, 0 if kl is None else kl.coef, "kl")
        buffer = (
            theirs.get("reward_model.overlong_buffer.len")
            or theirs.get("reward_model.reward_kwargs.overlong_buffer_cfg.len") or 0
        )  # fmt: skip
        on = theirs.get("reward_model.overlong_buffer.enable") or theirs.get(
            "reward_model.reward_kwargs.overlong_buffer_cfg.enable"
        )
        function = config.rewards.get("overlong") if config.rewards else None
        mine = 0 if function is None else function.buffer
        row["overlong_buffer.len"] = (buffer if on else 0, mine, "overlong_buffer")
        filters = bool(theirs.get("algorithm.filter_groups.enable"))
        row["filter_groups"] = (filters, config.algorithm.resamples is not None, "filter_groups")
    else:
        on = not theirs["algorithm.disable_kl"] and theirs["algorithm.kl_coef"]
        row["kl"] = (on or 0, 0 if kl is None else kl.coef, "kl")
        filters = bool(theirs.get("algorithm.online_filtering"))
        row["online_filtering"] = (filters, config.algorithm.resamples is not None, "filter")
    return row


# --- OpenRLHF's forks -----------------------------------------------------------------------------

OPENRLHF = {
    "pretrain": "model.path",
    "rollout_batch_size": "data.train_batch_size",
    "n_samples_per_prompt": "rollout.n",
    "temperature": "rollout.temperature",
    "top_p": "rollout.top_p",
    "prompt_max_len": "rollout.max_prompt_length",
    "generate_max_len": "rollout.max_response_length",
    "actor_learning_rate": "optimizer.lr",
    "l2": "optimizer.weight_decay",
    "max_norm": "optimizer.max_grad_norm",
    "eps_clip": "algorithm.loss.clip_ratio_low",
    "num_episodes": "trainer.total_epochs",
    "max_epochs": "algorithm.ppo_epochs",
    "seed": "seed",
}


def of_openrlhf(argv: list[str], root: Path) -> dict[str, Any]:
    program = next(root.rglob("cli/train_ppo_ray.py"))
    values: dict[str, Any] = {}
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            name = ast.literal_eval(node.args[0]).lstrip("-")
            keywords = {k.arg: k.value for k in node.keywords}
            default = keywords.get("default")
            try:
                values[name] = ast.literal_eval(default) if default is not None else None
            except ValueError:
                continue
            if "action" in keywords and values[name] is None:
                values[name] = False
    at_ = next(i for i, w in enumerate(argv) if "train_ppo_ray" in w)
    values.update(options_of(argv[at_ + 1 :]))
    return values


def openrlhf_row(theirs: Mapping[str, Any], config: Config) -> Row:
    row: Row = {key: (theirs.get(key), at(config, ours), key) for key, ours in OPENRLHF.items()}
    n, batch = theirs["n_samples_per_prompt"], config.data.train_batch_size
    updates = max(1, theirs["rollout_batch_size"] * n // theirs["train_batch_size"])
    row["train_batch_size"] = (updates, config.mini_batches, "train.batch_size")
    kl = config.algorithm.kl
    row["init_kl_coef"] = (max(0, theirs["init_kl_coef"]), 0 if kl is None else kl.coef, "kl")
    frozen = "visual" in str(theirs.get("freeze_prefix"))
    row["freeze_prefix"] = (frozen, config.model.freeze_vision_tower, "freeze")
    assert batch == theirs["rollout_batch_size"]
    return row


# --- The table ------------------------------------------------------------------------------------


def row_of(argv: list[str], script: Path, root: Path, config: Config, libraries: list[Path]) -> Row:
    command = " ".join(argv)
    if re.search(r"open_r1(_video)?/grpo", command):
        theirs, ours = of_fork(argv, script, root, libraries), fork_of_ours(config)
        said_as = {"per_device_train_batch_size": "num_processes"}
        return {key: (v, ours[key], said_as.get(key, key)) for key, v in theirs.items()}
    if "verl.trainer.main " in f"{command} ":
        return hydra_row(of_easyr1(argv, root), config, EASYR1)
    if "train_ppo_ray" in command:
        return openrlhf_row(of_openrlhf(argv, root), config)
    return hydra_row(of_verl(argv, root), config, VERL)


STARTS = re.compile(
    r"open_r1(_video)?/grpo\w*\.py|verl\.trainer\.main( |$)|train_ppo_ray"
    r"|\.main_(ppo|dapo|entropy)( |$)|\.fully_async_main( |$)"
)


VERDICTS = ("equal", "said", "wrong")


def verdict(theirs: Any, ours: Any, key: str, migrated: Migrated) -> str:
    if isinstance(theirs, int | float) and isinstance(ours, int | float):
        if abs(theirs - ours) <= 1e-9 * max(1, abs(theirs)):
            return "equal"
    elif str(theirs) == str(ours):
        return "equal"
    notes = [*migrated.lost, *migrated.migration.unneeded]
    last = key.rpartition(".")[2]
    return "said" if any(last in note for note in notes) else "wrong"


def compared(script: Path, root: Path, libraries: list[Path], shown: bool) -> Counter[str]:
    """Print the row of a script; its numbers."""
    name = f"{root.name}/{script.relative_to(root)}"
    started = [c for c in commands_of(script) if STARTS.search(" ".join(c))]
    if not started:
        print(f"| {name} | bash comes to no start | | | | |")
        return Counter({"not started": 1})
    try:
        migrated = migrate_file(script)
    except ValueError as error:
        print(f"| {name} | refused: {' '.join(str(error).split())[-120:]} | | | | |")
        return Counter(refused=1)
    config = Config.model_validate(migrated.migration.tree)
    row = row_of(started[-1], script, root, config, libraries)
    cells = {k: verdict(*pair, migrated) for k, pair in row.items()}
    counts = Counter(cells.values())
    numbers = " | ".join(str(counts[v]) for v in VERDICTS)
    print(f"| {name} | {migrated.given.source.title} | {len(cells)} | {numbers} |")
    for key, kind in cells.items():
        if kind == "wrong" or (shown and kind != "equal"):
            print(f"    {kind}: {key}: {row[key][0]!r} is {row[key][1]!r} here")
    return counts + Counter(scripts=1, settings=len(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--libraries", nargs="*", type=Path, default=[])
    parser.add_argument("--cells", action="store_true", help="show what is not equal")
    options = parser.parse_args()
    of_each: dict[str, Counter[str]] = {}
    print("| script | read as | settings | equal | said | wrong |\n|---|---|---|---|---|---|")
    for root in (path.resolve() for path in options.checkouts):
        found = [
            s for s in sorted(root.rglob("*.sh")) if STARTS.search(s.read_text(errors="ignore"))
        ]
        commit = ["git", "-C", str(root), "rev-parse", "--short=7", "HEAD"]
        at = subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip()
        of_each[f"{root.name} {at}"] = sum(
            (compared(s, root, options.libraries, options.cells) for s in found), Counter()
        )
    of_each["all"] = sum(of_each.values(), Counter())
    columns = ("scripts", "settings", *VERDICTS, "refused", "not started")
    print(f"\n| checkout | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, counts in of_each.items():
        print(f"| {name} | {' | '.join(str(counts[column]) for column in columns)} |")
    sys.exit(of_each["all"]["wrong"] > 0)


if __name__ == "__main__":
    main()
