"""``mmr1 check``: what a run would meet, before it is started.

The contract of its model, tokenizer, template and settings; its records, their media and rewards.
With ``--steps`` also the first steps on the CPU, with a tiny model in place of the run's own:
everything but the model is the run's.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from huggingface_hub import snapshot_download
from rich.console import Console
from transformers import AutoConfig

from mmr1.algorithms.advantages.distillation import TeacherModel
from mmr1.config import Config
from mmr1.environments.schemas import tool_schemas
from mmr1.evaluation.floor import GOLD_FORMS, measure_floor
from mmr1.progress import report_activity
from mmr1.report.run_reader import open_run
from mmr1.rewards import CompositeReward, RewardItem, build_composite_reward
from mmr1.rewards.builtin.elsewhere import RewardModelConfig
from mmr1.trainer.contract import find_assumptions
from mmr1.trainer.forward.any_model.twin import twins
from mmr1.trainer.inputs import Inputs, check_inputs
from mmr1.trainer.run import to_the_end
from mmr1.trainer.runs.findings import high_gap
from mmr1.trainer.train import training_steps
from mmr1.types import MediaKind, Sample
from mmr1.vision.build import family_of
from mmr1.vision.families.loading import find_architecture
from mmr1.vision.families.model_path import from_pretrained

SAMPLES = 16
"""Records whose gold answers are scored and whose media are timed."""

FLOOR_ROWS = 200
"""Records of each source whose floor is measured."""

PROMPT_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.py"]

NOISE = "The of and 7 to in is"
"""What a model that knows nothing may say."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a check.

    Attributes:
        facts: ``(subject, state)``.
        findings: Problems to mend before the run, a sentence each.
    """

    facts: Sequence[tuple[str, str]]
    findings: Sequence[str]


def check_run(config: Config, folder: Path, steps: int) -> Result:
    """Check a run that has not been started.

    Args:
        folder: Where the tiny model and the small run are written; new or empty.
        steps: Small steps to take; 0 for none.

    Raises:
        ValueError: If the run would be refused.
    """
    if not config.samples:
        family = family_of(config, tool_schemas(config.environment))
        return Result(_contract(find_assumptions(config, family)), ())
    small = without_workers(config)
    facts: list[tuple[str, str]] = []
    findings: list[str] = []
    with build_composite_reward(small.rewards, small.scoring) as rewards:
        inputs = check_inputs(small, rewards, train=True, say=lambda _: None)
        drawn = inputs.loader(config.seed).next(SAMPLES)  # leaves out broken media
        samples = list({sample.id: sample for sample in drawn}.values())
        facts += _contract(find_assumptions(config, inputs.family, samples))
        for found, problems in (
            _rows(config, inputs),
            _rewards(rewards, samples),
            _floor(rewards, inputs),
        ):
            facts += found
            findings += problems
        facts += [*_lengths(config, inputs, samples), *_media(inputs, samples)]
    if left_out := config.rewards.keys() - small.rewards.keys():
        facts.append(("not tried", f"reward models: {', '.join(sorted(left_out))}"))
    if steps:
        facts += _small_steps(config, small, folder, steps)
        columns = open_run(folder / "run").metrics()
        findings += [f"{gap.title}: {gap.detail}; {gap.remedy}" for gap in high_gap(columns)]
    return Result(facts, findings)


def _contract(assumptions: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [
        (promise if number == 0 else "", line)
        for promise, lines in assumptions.items()
        for number, line in enumerate(lines or ["as it is"])
    ]


def _small_steps(
    config: Config, small: Config, folder: Path, steps: int
) -> Iterator[tuple[str, str]]:
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; name another --output")
    with report_activity("making a tiny model of the same class"):
        parameters = write_tiny(config, folder / "model")
    yield "model", f"{config.model.path} with {parameters:,} parameters"
    before = time.perf_counter()
    to_the_end(training_steps(scaled_down(small, folder, steps)))
    yield f"{steps} small steps", f"done in {time.perf_counter() - before:.0f} s"


def write_tiny(config: Config, folder: Path) -> int:
    """Write a tiny model of the class and configuration of ``model.path``, with random weights, and
    the original's tokenizer, processor and template; returns the number of its parameters.

    Raises:
        ValueError: If ``model.path`` has no model, or no small one of its class can be built.
    """
    path, trusts = config.model.path, config.model.trust_remote_code
    auto_class = find_architecture(path).auto_class
    whole = from_pretrained(AutoConfig, path, trusts)
    source = path if Path(path).is_dir() else snapshot_download(path, allow_patterns=PROMPT_FILES)
    folder.mkdir(parents=True, exist_ok=True)
    for file in (file for pattern in PROMPT_FILES for file in Path(source).glob(pattern)):
        if not file.name.endswith(".index.json"):
            shutil.copy(file, folder / file.name)
    for tiny in twins(auto_class._model_mapping[type(whole)], whole, reads=True):
        tiny.save_pretrained(folder)
        return sum(parameter.numel() for parameter in tiny.parameters())
    raise ValueError(f"model.path '{path}': no small {whole.model_type} model can be built")


def without_workers(config: Config) -> Config:
    """Return the configuration for one process, without an engine of its own or reward models."""
    rewards = {
        name: reward
        for name, reward in config.rewards.items()
        if not isinstance(reward, RewardModelConfig)
    }
    if not rewards:
        raise ValueError("rewards has reward models only, which are not tried")
    return config.changed(
        {
            "data.max_bad_fraction": 1.0,
            "rollout.engine": "hf",
            "rollout.max_off_policy_steps": 0,
            "rollout.queue": {},
            "rewards": rewards,
            "resources": {},
        }
    )


def scaled_down(config: Config, folder: Path, steps: int) -> Config:
    """Return the configuration of the small run with the tiny model."""
    model, rollout = str(folder / "model"), config.rollout
    values: dict[str, Any] = {
        "model.path": model,
        "model.dtype": "float32",
        "model.gradient_checkpointing": False,
        "data.train_batch_size": min(2, config.data.train_batch_size),
        "rollout.n": min(4, rollout.n),
        "rollout.max_response_length": min(32, rollout.max_response_length),
        "algorithm.filter_groups": None,
        "algorithm.ppo_mini_batch_size": None,
        "trainer.max_steps": steps,
        "trainer.total_epochs": None,
        "trainer.output_dir": str(folder / "run"),
        "trainer.validation": None,
        "trainer.tracking": None,
        "trainer.logging_steps": 1,
    }
    algorithm = config.algorithm
    if isinstance(algorithm.reference, TeacherModel):
        values[f"{algorithm.reference_key}.path"] = model
    if algorithm.critic is not None and algorithm.critic.path is not None:
        values["algorithm.advantage.critic.path"] = None
    return config.changed(values)


Found = tuple[list[tuple[str, str]], list[str]]
"""Facts, and findings."""


def _rows(config: Config, inputs: Inputs) -> Found:
    kept, dropped = inputs.count, inputs.dropped
    facts = [("records", f"{kept:,} are trained on, {len(dropped):,} are left out")]
    reasons = Counter(entry["reason"] for entry in dropped)
    facts += [("", f"{count:,}: {reason}") for reason, count in reasons.most_common(3)]
    share = len(dropped) / max(1, kept + len(dropped))
    allowed = config.data.max_bad_fraction
    if share <= allowed:
        return facts, []
    first = dropped[0]
    return facts, [
        f"{share:.1%} of the records cannot be used, and data.max_bad_fraction is {allowed:g}; "
        f"the first is {first.get('place', first['row'])}: {first['reason']}"
    ]


def _lengths(config: Config, inputs: Inputs, samples: Sequence[Sample]) -> list[tuple[str, str]]:
    family, prompts = inputs.family, [inputs.render(sample) for sample in samples]
    vision = max(sum(map(family.media_tokens, prompt.media)) for prompt in prompts)
    longest = max(family.prompt_length(prompt) for prompt in prompts)
    limit = f"rollout.max_prompt_length={config.rollout.max_prompt_length}"
    return [("prompts", f"up to {longest:,} tokens, {vision:,} of them vision; {limit}")]


def _rewards(reward: CompositeReward, samples: Sequence[Sample]) -> Found:
    """Report what the reward functions pay for gold answers, and for noise."""
    known = [sample for sample in samples if sample.answer is not None]
    items = [
        RewardItem(text, sample, group=group)
        for group, sample in enumerate(known)
        for text in (*(form.format(sample.answer) for form in GOLD_FORMS), *_demonstration(sample))
    ]
    noise = [RewardItem(NOISE, sample, group=group) for group, sample in enumerate(known)]
    before = time.perf_counter()
    verdicts = reward.score([*items, *noise])
    seconds = (time.perf_counter() - before) / max(1, len(verdicts))
    facts, findings = [], []
    for name in reward.rewards:
        values = [verdict.components.get(name) for verdict in verdicts]
        golds, others = values[: len(items)], values[len(items) :]
        paid = {item.group for item, value in zip(items, golds, strict=True) if value}
        paid_noise = sum(bool(value) for value in others)
        facts.append((f"reward {name}", f"reads {', '.join(reward.columns(name))}"))
        facts.append(
            (
                "",
                f"pays {len(paid)} of {len(known)} gold answers, {paid_noise} of {len(known)} "
                "answers without sense",
            )
        )
        if known and not paid:
            findings.append(
                f"rewards.{name} pays none of {len(known)} gold answers in any of "
                f"{len(GOLD_FORMS)} forms (<answer>, \\boxed, a box, alone). A reward for the "
                "reasoning may do so; see what it says with `mmr1 reward score`"
            )
        elif len(set(values)) == 1 and values[0] is not None:
            findings.append(
                f"rewards.{name} gives {values[0]:g} to everything, and a group without "
                "differences teaches nothing"
            )
    if invalid := [verdict for verdict in verdicts if not verdict.valid]:
        findings.append(
            f"{len(invalid)} of {len(verdicts)} completions have no valid reward: "
            f"{invalid[0].error}"
        )
    facts.append(("time of rewards", f"{seconds * 1000:.1f} ms a completion"))
    return facts, findings


def _floor(reward: CompositeReward, inputs: Inputs) -> Found:
    """Report what answers without sense score on the first rows."""
    rows = [sample for source in inputs.sources.values() for sample in islice(source, FLOOR_ROWS)]
    if all(sample.answer is None for sample in rows):
        return [], []
    floor = measure_floor(reward, rows)
    return [("answers without sense", floor.summary)], floor.findings


def _demonstration(sample: Sample) -> Iterator[str]:
    if sample.demonstrated_from < len(sample.messages):
        yield sample.messages[-1].text


def _media(inputs: Inputs, samples: Sequence[Sample]) -> list[tuple[str, str]]:
    """How long media take: each is decoded and prepared once."""
    facts = []
    for kind in get_args(MediaKind):
        shown = [medium for s in samples for medium in s.shown if medium.kind == kind]
        if not shown:
            continue
        before = time.process_time()
        for medium in shown:
            inputs.family.prepare_media(medium)
        seconds = (time.process_time() - before) / len(shown)
        facts.append((f"time of {kind}s", f"{seconds * 1000:.1f} ms each, {len(shown)} prepared"))
    return facts


def print_result(result: Result) -> None:
    """Print the facts and the findings."""
    console = Console(highlight=False, markup=False, emoji=False)
    width = max(len(subject) for subject, _ in result.facts)
    for subject, state in result.facts:
        console.print(f"{subject:<{width}}  {state}", soft_wrap=True)
    for finding in result.findings:
        console.print(f"problem: {finding}", soft_wrap=True)
    if not result.findings:
        console.print("nothing found that the run would meet")
