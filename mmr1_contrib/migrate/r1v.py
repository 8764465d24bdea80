"""R1-V and the projects that are forks of it, each with its own trainer's counting and constants.

What is here and in no key of theirs stands in their trainers: ``generate`` with temperature 1 and
transformers' ``top_k`` of 50, a loss that is the mean over each completion, a KL of k3 in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from mmr1_contrib.migrate import r1v_keys as keys
from mmr1_contrib.migrate import trl_shared as shared
from mmr1_contrib.migrate.migration import Migration, Tree
from mmr1_contrib.migrate.reading import FIELDS
from mmr1_contrib.migrate.shared import (
    set_correction,
    set_kl,
    set_lengths,
    set_training_files,
)
from mmr1_contrib.migrate.source import Carry, Source
from mmr1_contrib.migrate.trl_shared import Batches

_TEXT = 1024
"""Tokens of a prompt besides its image, where they are not bounded."""
_TOKEN = 28 * 28
"""Pixels of a token of Qwen2-VL and Qwen2.5-VL."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """The properties of a fork's trainer besides its keys.

    Attributes:
        counts: Unit of per_device_train_batch_size.
        by_vllm: It has a path with vLLM.
        top_p: Top-p of its sampling.
        temperature: Temperature of its sampling with vLLM; None for that of the key.
        image_pixels: The area to which its copy of qwen-vl-utils shrinks images.
        video: Our keys for the frames that its copy of qwen-vl-utils takes.
        kl_bound: Bound to which it clamps the difference of log-probs; None if it does not.
        cuts_prompts: Prompts are cut; otherwise they are as long as they are.
        prompt: The constants of the program with its prompt; empty where it is composed.
    """

    counts: Literal["prompts", "completions"] = "prompts"
    by_vllm: bool = True
    top_p: float = 1.0
    temperature: float | None = None
    image_pixels: int | None = None
    video: Mapping[str, Any] | None = None
    kl_bound: int | None = None
    cuts_prompts: bool = True
    prompt: str = "QUESTION_TEMPLATE"


def _carry(trainer: Trainer) -> Carry:
    def carry(flat: Tree, migration: Migration) -> None:
        program = flat.pop("program", "grpo.py")
        for key in ("model_name_or_path", "dataset_name", "output_dir"):
            if isinstance(words := flat.get(key), list):
                flat[key] = " ".join(map(str, words))
                migration.note(key, flat[key], "without quotes the shell makes several words of it")
        shared.processes(flat, migration)
        _data(flat, migration)
        shared.model(flat, migration)
        if flat.pop("freeze_vision_modules", False):
            migration.set("model.freeze_vision_tower", True)
        shared.optimizer(flat, migration)
        batches = _batches(flat, migration, trainer)
        _loss(flat, migration, trainer, batches)
        _rollout(flat, migration, trainer)
        _pixels(flat, migration, trainer)
        _prompt(flat, migration, trainer, program)
        _rewards(flat, migration, program)
        shared.validation(flat, migration, batches)
        shared.trainer(flat, migration, batches)

    return carry


def _data(flat: Tree, migration: Migration) -> None:
    """Set the rows, named in one of several ways; the others are not read then."""
    files = flat.pop("data_file_paths", None) or flat.pop("jsonl_path", None)
    folders = flat.get("image_folders") or flat.get("image_root")
    if files is not None:
        flat.pop("dataset_name", None)  # not read then
        set_training_files(migration, "data_file_paths", str(files).split(":"))
    name = str(flat.get("dataset_name", ""))
    if name.endswith((".yaml", ".yml")):
        migration.note(
            "dataset_name", name, "a list of files with shares; name those files in data.train, "
            "with weights",
        )  # fmt: skip
    shared.data(flat, migration)
    if folders:
        different = list(dict.fromkeys(str(folders).split(":")))
        migration.set("data.media_root", different[0])
        if len(different) > 1:
            migration.note(
                "image_folders", folders, "there is one data.media_root; give the rows paths "
                "below it",
            )  # fmt: skip


def _batches(flat: Tree, migration: Migration, trainer: Trainer) -> Batches:
    """Set the batches: an optimizer step is one rollout, but forks count differently."""
    update, n = shared.rows_per_update(flat), flat["num_generations"]
    flat.pop("gradient_accumulation_steps")
    if trainer.counts == "completions" and update % n:
        raise ValueError(
            f"a step has {update} completions, which num_generations={n} does not divide; with "
            "several processes, add num_processes=N"
        )
    prompts = update // n if trainer.counts == "completions" else update
    migration.set("data.train_batch_size", prompts)
    return Batches(flat.get("num_iterations", 1))


def _loss(flat: Tree, migration: Migration, trainer: Trainer, batches: Batches) -> None:
    migration.set("algorithm.name", "grpo")
    migration.set("algorithm.loss.agg_mode", "seq-mean-token-mean")
    migration.set("algorithm.advantage", {"scale_rewards": "group", "epsilon": 1e-4})
    low, high = flat.pop("epsilon", None), flat.pop("epsilon_high", None)
    if low is not None:  # elsewhere the ratio is that of a policy to itself
        migration.set("algorithm.loss.clip_ratio_low", low)
        migration.set("algorithm.loss.clip_ratio_high", low if high is None else high)
    set_correction(migration, None)
    if "num_iterations" in flat:
        migration.set("algorithm.ppo_epochs", flat.pop("num_iterations"))
    beta = flat.pop("beta")
    if beta:
        set_kl(migration, beta, True, "k3")
        bound = (
            "is not clamped" if trainer.kl_bound is None else f"is clamped to {trainer.kl_bound}"
        )
        migration.unneeded.append(
            f"beta={beta!r}: the difference of the log-probs is clamped to 20, there it {bound}"
        )
    names = ("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps")
    moves, share, every = (flat.pop(name, None) for name in names)
    if moves and beta:
        moving = {"type": "moving", "sync_steps": batches.steps(every), "mixup_alpha": share}
        migration.set("algorithm.kl.reference", moving)


def _rollout(flat: Tree, migration: Migration, trainer: Trainer) -> None:
    asked, share = flat.pop("use_vllm"), flat.pop("vllm_gpu_memory_utilization")
    by_vllm, warm = asked and trainer.by_vllm, flat.pop("temperature")
    migration.set("rollout.engine", {"type": "vllm" if by_vllm else "hf"})
    if by_vllm:
        migration.set("rollout.engine.gpu_memory_utilization", share)
        fixed = trainer.temperature
        migration.set("rollout.temperature", warm if fixed is None else fixed)
    else:
        migration.set("rollout.temperature", 1.0)
        migration.set("rollout.top_k", 50)
    if asked and not by_vllm:
        migration.note("use_vllm", True, "this program always samples with generate")
    migration.set("rollout.top_p", trainer.top_p)
    prompt, response = flat.pop("max_prompt_length"), flat.pop("max_completion_length")
    if not trainer.cuts_prompts:
        prompt = flat["max_pixels"] // _TOKEN + _TEXT
        migration.notes.append(
            f"max_prompt_length: not read there; rollout.max_prompt_length is {prompt}, an image "
            f"of max_pixels={flat['max_pixels']} and {_TEXT} tokens of text; longer prompts are "
            "left out"
        )
    else:
        migration.note(
            "max_prompt_length", prompt, "longer prompts are left out, and listed; there their "
            "start is missing in the log-probs, and only there",
        )  # fmt: skip
    window = flat.pop("vllm_max_model_len", None)
    set_lengths(migration, prompt, response, "vllm_max_model_len", window if by_vllm else None)


def _pixels(flat: Tree, migration: Migration, trainer: Trainer) -> None:
    least, most = flat.pop("min_pixels"), flat.pop("max_pixels")
    if trainer.image_pixels is not None and most > trainer.image_pixels:
        migration.note(
            "max_pixels", most, "its copy of qwen-vl-utils shrinks images to "
            f"{trainer.image_pixels} before",
        )  # fmt: skip
        most = trainer.image_pixels
    migration.set("data.image", {"min_pixels": least, "max_pixels": most})
    if trainer.video is not None:
        migration.set("data.video", dict(trainer.video))


def _prompt(flat: Tree, migration: Migration, trainer: Trainer, program: str) -> None:
    """Set the prompt: the program's own text, read from its file."""
    name = f"{program}:{trainer.prompt}"
    if (task := flat.get("task_type")) is not None:
        name = f"{_module_of(program)}.get_question_template[{task}]"
    if trainer.prompt:
        migration.set("data.prompt_template", name)
    else:
        migration.notes.append(
            f"data.prompt_template: not set; {program} composes its prompt, so write a .jinja file"
        )


def _module_of(program: str) -> str:
    return f"{PurePosixPath(program).parent}/vlm_modules/qwen_module.py:Qwen2VLModule"


def _rewards(flat: Tree, migration: Migration, program: str) -> None:
    """Set the rewards: the program's functions, read from its file."""
    names = flat.pop("reward_funcs")
    names = [names] if isinstance(names, str) else list(names)
    task, method = flat.pop("task_type", None), flat.pop("reward_method", None)
    by_module = flat.pop("is_reward_customized_from_vlm_module", False)
    folders = [flat.pop(key, None) or "" for key in ("image_folders", "image_root")]
    functions: Tree = {name: {"type": f"{program}:{name}_reward"} for name in names}
    if by_module and task == "rec":
        path = _module_of(program)
        own = {"accuracy": "iou_reward", "format": "format_reward_rec"}
        functions = {name: {"type": f"{path}.{own.get(name, name)}"} for name in names}
    elif by_module:
        migration.note(
            "is_reward_customized_from_vlm_module", True, "the functions that vlm_modules has for "
            f"task_type {task}; name them in rewards",
        )  # fmt: skip
    if readable := list(dict.fromkeys(filter(None, ":".join(folders).split(":")))):
        for function in functions.values():  # they open the pictures by their paths
            function["sandbox"] = {"readable": [*readable]}
    migration.set("rewards", functions)
    if method is not None:
        migration.note(
            "reward_method", method, "the functions decide by the column accu_reward_method"
        )
    temporal, length = flat.pop("temporal", False), flat.pop("len_control", False)
    right = {"of": names[0], "correct_above": 0.1}
    if temporal:
        contrast = {**right, "bonus": 0.3, "shuffled_factor": 0.8}
        migration.set("rewards.temporal_contrast", contrast)
        migration.set("rollout.views", {"view": "shuffle", "share": 0.5, "loss": "none"})
    if length:
        bonus = {**right, "bonus": 0.2, "min_length": 320, "max_length": 512}
        migration.set("rewards.length_bonus", bonus)


Test = Callable[[Mapping[str, Any]], bool]


def _names(*names: str) -> Test:
    """A test whether the command has one of these keys, or the program a field of such a name."""
    return lambda given: any(name in given or name in given.get(FIELDS, ()) for name in names)


def _source(
    kind: str,
    title: str,
    program: tuple[str, ...],
    is_theirs: Test,
    trainer: Trainer,
    defaults: Tree | None = None,
    composed: Mapping[str, str] | None = None,
) -> Source:
    return Source(
        project="r1-v-forks",
        kind=kind,
        title=title,
        program=program,
        if_named=("*.py",),
        arguments="options",
        is_theirs=is_theirs,
        carry=(_carry(trainer),),
        defaults={**keys.DEFAULTS, **(defaults or {})},
        older={"torch_dtype": "dtype", "evaluation_strategy": "eval_strategy"},
        renamed=keys.RENAMED,
        composed={**keys.COMPOSED, **(composed or {})},
        unneeded=keys.UNNEEDED,
        sure=False,
    )


def _all(*tests: Test) -> Test:
    return lambda given: all(test(given) for test in tests)


def _none(*tests: Test) -> Test:
    return lambda given: not any(test(given) for test in tests)


def _is_found(given: Mapping[str, Any]) -> bool:
    """True if the program's file exists."""
    return FIELDS in given


def _samples_by_vllm(given: Mapping[str, Any]) -> bool:
    return bool(given.get("use_vllm"))


_GRPO = ("src/open_r1/grpo.py", "*/src/open_r1/grpo.py", "open_r1/grpo.py")
_JSONL = tuple(path.replace("grpo.py", "grpo_jsonl.py") for path in _GRPO)
_REC = tuple(path.replace("grpo.py", "grpo_rec.py") for path in _GRPO)
_VIDEO = ("src/open_r1_video/grpo.py", "*/open_r1_video/grpo.py")

_is_open_r1 = _names("config", "system_prompt", "dataset_mixture", "vllm_mode")
"""Hugging Face's, whose program has the same path."""
_is_vlm_r1 = _names(
    "RepeatRandomSampler", "is_reward_customized_from_vlm_module", "max_anyres_num", "task_type",
    "freeze_vision_modules",
)  # fmt: skip
_is_video_r1 = _names("temporal", "len_control")
_is_omni = _names("HumanOmniVLGRPOTrainer")
_is_early = _all(
    _is_found, _samples_by_vllm, _none(_names("Qwen2VLGRPOVLLMTrainerModified"), _is_video_r1)
)
"""Its sampler repeats each prompt, so batches count completions."""
_has_own_config = _names("open_r1.trainer.GRPOConfig", "vlm_trainer")

FORKS = (
    _source(
        "r1-v", "R1-V", _GRPO,
        _none(_is_open_r1, _is_vlm_r1, _is_video_r1, _is_omni, _is_early),
        Trainer(), keys.TRL_0_14,
    ),
    _source(
        "r1-v-early", "R1-V, its first trainer with vLLM", _GRPO, _is_early,
        Trainer(counts="completions"), keys.TRL_0_14,
    ),
    _source(
        "video-r1", "Video-R1", _GRPO, _is_video_r1,
        Trainer(
            top_p=0.95, temperature=1.0, image_pixels=256 * 28 * 28, kl_bound=10,
            prompt="QUESTION_TEMPLATE + TYPE_TEMPLATE[problem_type]",
            video={
                "fps": 2.0, "max_frames": 16, "max_pixels": 128 * 28 * 28, "backend": "decord"
            },
        ),
        keys.TEMPORAL, keys.TEMPORAL_COMPOSED,
    ),
    _source(
        "vlm-r1", "VLM-R1 from 0.1 on", (*_JSONL, *_REC, *_GRPO), _is_vlm_r1,
        Trainer(counts="completions", by_vllm=False, cuts_prompts=False),
        {**keys.CLIPPED, **keys.ITERATED, **keys.CUSTOM},
        {**keys.CUSTOM_COMPOSED, **keys.REC_COMPOSED, **keys.CLIPPED_COMPOSED,
         **keys.ITERATED_COMPOSED},
    ),
    _source(
        "vlm-r1-release", "VLM-R1 before 0.1", (*_JSONL, *_REC),
        _all(_is_found, _none(_is_vlm_r1, _has_own_config)),
        Trainer(by_vllm=False), {}, keys.REC_COMPOSED,
    ),
    _source(
        "r1-onevision", "R1-Onevision", (*_JSONL, *_REC),
        _all(_is_found, _has_own_config, _none(_is_vlm_r1)),
        Trainer(by_vllm=False, prompt=""), keys.CLIPPED,
        {**keys.FILES_COMPOSED, **keys.REC_COMPOSED, **keys.CLIPPED_COMPOSED},
    ),
    _source(
        "open-r1-video", "Open-R1-Video", _VIDEO, lambda given: True,
        Trainer(
            by_vllm=False, kl_bound=11,
            video={
                "fps": 2.0, "num_frames": 16, "max_pixels": 196 * 28 * 28, "backend": "decord"
            },
        ),
        {"reward_funcs": ["accuracy"]}, keys.VIDEO_COMPOSED,
    ),
    _source(
        "r1-omni", "R1-Omni", _GRPO, _is_omni, Trainer(by_vllm=False, prompt=""), keys.TRL_0_14
    ),
)  # fmt: skip
