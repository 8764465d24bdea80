"""Evaluate a model on held-out records: greedy, and sampled k times per prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from mmr1.config import Config, EvalConfig, RewardConfig, SamplingConfig
from mmr1.data.sampler import MediaCheck
from mmr1.progress import LONG_S, WAIT_S
from mmr1.rewards.reading.extract import extract_answer
from mmr1.rollout.protocol import Engine, complete, requests_for
from mmr1.trainer.runs.output import append_json
from mmr1.trainer.runs.step import PhaseTimer
from mmr1.trainer.sampling.experience import SupportsLogprobs
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.trainer.sampling.views import VisionUse, changes, under, vision_use
from mmr1.trainer.validation.statistics import interval, majority, pass_at
from mmr1.types import Completion, MediaRef, Prompt, Reward, Sample, ScoredGroup, StepStats
from mmr1.vision.views import view_options

BATCH_SIZE = 128
"""Prompts that are sampled, scored and saved together."""

Row = dict[str, Any]
"""One completion, as a line of ``completions.jsonl``."""


@dataclass(frozen=True, slots=True)
class Share:
    """The mean score of some prompts, with its 95% interval over these prompts."""

    prompts: int
    accuracy: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Mode:
    """The results of one way of decoding.

    Attributes:
        accuracy: Mean over prompts of the mean score of the prompt's completions (mean@k).
            Completions without a valid reward are left out.
        interval: 95% interval of ``accuracy`` over the prompts; see ``statistics.interval``.
        truncated: Completions that were cut off.
        invalid: Completions without a valid reward.
        components: Mean of every component of the reward.
        at: Share of completions whose accuracy is at least each of ``eval.accuracy_thresholds``.
        pass_at: Chance that one of k completions is right, by k. Empty without several
            completions per prompt.
        majority: Score of the most frequent answer, or None in the same case.
        best_of: Score of the completion that ``eval.sampled.best_of`` values most, or None without
            it.
        by: Accuracy of each task type, or of each value of ``eval.group_by``.
        value_mean: Mean value of the accuracy function, before the thresholds.
        length_right, length_wrong: Mean tokens of the right and of the wrong completions, or None
            if there are none.
        vision: Nats that a token loses with ``blank`` and ``swapped`` pictures, of
            ``eval.vision_use``.
    """

    accuracy: float
    interval: tuple[float, float]
    completions: int
    truncated: int
    invalid: int
    length_mean: float
    components: dict[str, float]
    at: dict[str, float] = field(default_factory=dict)
    pass_at: dict[str, float] = field(default_factory=dict)
    majority: float | None = None
    best_of: float | None = None
    by: dict[str, Share] = field(default_factory=dict)
    length_right: float | None = None
    length_wrong: float | None = None
    value_mean: float = 0.0
    vision: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of one evaluation: ``modes`` are ``greedy`` and what else was asked for.

    ``prompts`` are those that were evaluated, without those that were left out.
    """

    prompts: int
    modes: dict[str, Mode]
    rows: list[Row] = field(repr=False)


def evaluate(
    config: Config,
    engine: Engine,
    render: Callable[[Sample], Prompt],
    reward_manager: RewardManager,
    samples: Sequence[Sample],
    check: MediaCheck,
    progress: Callable[[int], None] = lambda done: None,
    earlier_rows: Iterable[Row] = (),
    save_rows: Callable[[list[Row]], None] = lambda rows: None,
    keep: Callable[[str, list[ScoredGroup]], None] = lambda mode, groups: None,
    policy: SupportsLogprobs | None = None,
) -> Evaluation:
    """Sample and score completions of every record.

    Args:
        config: ``eval``, ``rewards``, the sampling of ``rollout`` and ``seed`` count.
        check: Leaves out the records whose media cannot be decoded.
        progress: Called with the number of prompts that each batch has finished.
        earlier_rows: Rows of an interrupted evaluation; these prompts are not sampled again.
        save_rows: Called with the rows of each batch when it is scored.
        keep: Called with the way of decoding and the scored groups of each batch.
        policy: The same model, for ``eval.vision_use``.

    Raises:
        ValueError: More records are left out than ``data.max_bad_fraction`` allows.
    """
    samples = samples[: config.eval.limit]
    usable = partial(check.usable, str(config.eval_records))
    accuracy_name = accuracy_function(config.rewards, config.eval.accuracy_function)
    rows_by_key = {(row["mode"], row["id"], row["index"]): row for row in earlier_rows}
    for name, decoding in decodings(config).items():
        missing = [
            s
            for s in samples
            if decoding.is_for(s.shown)
            and any((name, s.id, i) not in rows_by_key for i in range(decoding.n))
        ]
        progress(len(samples) - len(missing))
        for batch in _batches(missing, BATCH_SIZE):
            check.media.prefetch(m for sample in batch for m in sample.media)
            prompts = [render(sample) for sample in batch if usable(sample)]
            requests = requests_for(prompts, decoding.n, decoding.sampling, config.seed, step=0)
            requests = [replace(r, prompt=decoding.shown(r.prompt, r.seeds[0])) for r in requests]
            groups = complete(engine, requests)
            scored = reward_manager.score(groups)
            looks = VisionUse()
            if config.eval.vision_use and decoding.view is None:
                assert policy is not None, "a model computes the log-probs"
                looks = vision_use(policy, groups)
            rows = [
                {**row, "vision": vision} if (vision := looks.of(number, row["index"])) else row
                for number, group in enumerate(scored)
                for row in _rows(name, group, accuracy_name, config.eval)
            ]
            rows_by_key.update({(row["mode"], row["id"], row["index"]): row for row in rows})
            save_rows(rows)
            keep(name, scored)
            progress(len(batch))
    evaluated = [s for s in samples if ("greedy", s.id, 0) in rows_by_key]
    rows = [
        rows_by_key[name, sample.id, index]
        for name, decoding in decodings(config).items()
        for sample in evaluated
        if decoding.is_for(sample.shown)
        for index in range(decoding.n)
    ]
    return Evaluation(len(evaluated), summarise(rows, config.eval, accuracy_name), rows)


@dataclass(frozen=True, slots=True)
class Decoding:
    """A way of decoding: completions per prompt, their sampling, and what the model sees.

    Attributes:
        view: Another view of the pictures and its strength; None: as they are.
    """

    n: int
    sampling: SamplingConfig
    view: tuple[str, float] | None = None

    def is_for(self, media: Iterable[MediaRef]) -> bool:
        """True of a record with these media, if the view changes one; of any without a view."""
        return self.view is None or changes(media, self.view[0])

    def shown(self, prompt: Prompt, seed: int) -> Prompt:
        return prompt if self.view is None else under(prompt, view_options(*self.view, seed))


def decodings(config: Config) -> dict[str, Decoding]:
    """The ways of decoding by name: greedy, sampled, and greedy under each of ``eval.views``."""
    greedy = config.rollout.sampling.greedy()
    modes = {"greedy": Decoding(1, greedy)}
    if (sampled := config.eval.sampled) is not None:
        sampling = config.rollout.sampling.changed(
            temperature=sampled.temperature, top_p=sampled.top_p, top_k=sampled.top_k, min_p=0.0
        )
        modes["sampled"] = Decoding(sampled.n, sampling)
    for view, strength in config.eval.views.items():
        modes[f"greedy_{view}"] = Decoding(1, greedy, (view, strength or 1.0))
    return modes


def accuracy_function(rewards: Mapping[str, RewardConfig], name: str | None) -> str:
    """The reward function that decides whether an answer is right.

    Raises:
        ValueError: ``eval.accuracy_function`` names no reward function.
    """
    names = list(rewards)
    if name is None:
        return next((n for n in names if n != "format"), names[0])
    if name not in names:
        raise ValueError(f"eval.accuracy_function '{name}' is not in rewards ({names})")
    return name


def write_evaluation(folder: Path, result: Evaluation) -> None:
    """``result.json`` and ``completions.jsonl``, replacing those of an earlier evaluation."""
    folder.mkdir(parents=True, exist_ok=True)
    modes = {name: asdict(mode) for name, mode in result.modes.items()}
    text = json.dumps({"prompts": result.prompts, **modes}, indent=2)
    (folder / "result.json").write_text(text + "\n")
    (folder / "completions.jsonl").unlink(missing_ok=True)
    append_json(folder / "completions.jsonl", result.rows)


def summarise(rows: Sequence[Row], config: EvalConfig, accuracy_name: str) -> dict[str, Mode]:
    """The metrics of each way of decoding, from its completions alone."""
    modes: dict[str, list[Row]] = {}
    for row in rows:
        modes.setdefault(row["mode"], []).append(row)
    return {name: _mode(of_mode, config, accuracy_name) for name, of_mode in modes.items()}


def prompt_scores(rows: Iterable[Row]) -> dict[str, float]:
    """Mean score of each prompt's completions, by id, without prompts that have no valid reward."""
    scores: dict[str, list[float]] = {}
    for row in rows:
        if row["score"] is not None:
            scores.setdefault(row["id"], []).append(row["score"])
    return {name: fmean(values) for name, values in scores.items()}


def _mode(rows: Sequence[Row], config: EvalConfig, accuracy_name: str) -> Mode:
    valid = [row for row in rows if row["score"] is not None]
    values = [v for row in valid if (v := row["components"][accuracy_name]) is not None]
    scores = prompt_scores(rows)
    total = _share(list(scores.values()))
    groups = _by_prompt(rows)
    several = any(len(group) > 1 for group in groups)
    return Mode(
        accuracy=total.accuracy,
        interval=total.interval,
        completions=len(rows),
        truncated=sum(row["truncated"] for row in rows),
        invalid=len(rows) - len(valid),
        length_mean=fmean(row["tokens"] for row in rows),
        components=_component_means(rows),
        at={
            f"{t:g}": fmean(v >= t for v in values) if values else 0.0
            for t in config.accuracy_thresholds
        },
        pass_at=_pass_at(groups) if several and config.accuracy_thresholds else {},
        majority=_majority(groups) if several else None,
        best_of=_best_of(groups, config.best_of) if several and config.best_of else None,
        length_right=_mean_length(rows, right=True),
        length_wrong=_mean_length(rows, right=False),
        by=_by_kind(rows, scores),
        value_mean=fmean(values) if values else 0.0,
        vision=_vision_means(rows),
    )


def _vision_means(rows: Sequence[Row]) -> dict[str, float]:
    """Over all tokens."""
    seen = [row for row in rows if "vision" in row]
    means = {}
    for name in dict.fromkeys(name for row in seen for name in row["vision"]):
        own = [row for row in seen if name in row["vision"]]
        tokens = sum(row["tokens"] for row in own)
        means[name] = sum(row["vision"][name] * row["tokens"] for row in own) / tokens
    return means


def _mean_length(rows: Iterable[Row], right: bool) -> float | None:
    scored = (row for row in rows if row["score"] is not None)
    lengths = [row["tokens"] for row in scored if (row["score"] >= 1.0) is right]
    return fmean(lengths) if lengths else None


def _share(scores: Sequence[float]) -> Share:
    if not scores:
        return Share(0, 0.0, (0.0, 0.0))
    return Share(len(scores), fmean(scores), interval(scores))


def _by_prompt(rows: Iterable[Row]) -> list[list[Row]]:
    """The completions with a valid reward, by prompt; prompts without any are left out."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["score"] is not None:
            groups.setdefault(row["id"], []).append(row)
    return list(groups.values())


def _pass_at(groups: Sequence[Sequence[Row]]) -> dict[str, float]:
    """pass@k for k = 1, 2, 4, ... and for the smallest number of completions of a prompt."""
    if not groups:
        return {}
    fewest = min(map(len, groups))
    ks = sorted({fewest, *(2**p for p in range(fewest.bit_length()))})
    right = [[row["score"] >= 1.0 for row in group] for group in groups]
    return {str(k): fmean(pass_at(of_prompt, k) for of_prompt in right) for k in ks if k <= fewest}


def _majority(groups: Sequence[Sequence[Row]]) -> float:
    if not groups:
        return 0.0
    return fmean(majority([r["vote"] for r in g], [r["score"] for r in g]) for g in groups)


def _best_of(groups: Sequence[Sequence[Row]], name: str) -> float:
    """Mean score of each prompt's completion of the highest value, the first of equal ones."""
    if not groups:
        return 0.0
    best = [max(group, key=lambda row: row["components"][name]) for group in groups]
    return fmean(row["score"] for row in best)


def _by_kind(rows: Iterable[Row], scores: Mapping[str, float]) -> dict[str, Share]:
    kinds: dict[str, list[float]] = {}
    for name, kind in {row["id"]: row["kind"] for row in rows}.items():
        if name in scores:
            kinds.setdefault(kind, []).append(scores[name])
    return {kind: _share(kinds[kind]) for kind in sorted(kinds)} if len(kinds) > 1 else {}


def _component_means(rows: Sequence[Row]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row["components"])
    columns = {n: [v for r in rows if (v := r["components"].get(n)) is not None] for n in names}
    return {name: fmean(values) if values else 0.0 for name, values in columns.items()}


def _batches(samples: Sequence[Sample], size: int) -> Iterator[Sequence[Sample]]:
    for start in range(0, len(samples), size):
        yield samples[start : start + size]


def _rows(mode: str, scored: ScoredGroup, accuracy_name: str, config: EvalConfig) -> Iterator[Row]:
    sample = scored.group.prompt.sample
    kind = sample.meta.get(config.group_by) if config.group_by else sample.task
    completions = scored.group.completions
    for index, (completion, reward) in enumerate(zip(completions, scored.rewards, strict=True)):
        value = reward.components.get(accuracy_name) if reward.valid else None
        score = None if value is None else _score(value, config)  # no fault counts as 0, no skip
        yield {
            "mode": mode,
            "id": sample.id,
            "index": index,
            "kind": str(kind),
            "answer": sample.answer,
            "completion": completion.text,
            "vote": _vote(completion.text),
            "tokens": completion.sampled_tokens,
            "truncated": completion.truncated,
            "score": score,
            "right": None if score is None else score >= 1.0,
            "reward": reward.value,
            "components": dict(reward.components),
            "status": str(reward.status),
            **_turns(completion),
        }


def _turns(completion: Completion) -> dict[str, Any]:
    """The spans of policy and environment in a conversation; nothing without one."""
    if not completion.spans:
        return {}
    return {
        "turns": [
            {"role": span.role, "text": span.text, "calls": [asdict(call) for call in span.calls]}
            for span in completion.spans
        ]
    }


def is_right(reward: Reward, accuracy_name: str) -> bool:
    """True if the accuracy is 1."""
    value = reward.components.get(accuracy_name)
    return value is not None and value >= 1.0


def _score(value: float, config: EvalConfig) -> float:
    """1 or 0 by the first of ``eval.accuracy_thresholds``; without thresholds the value itself."""
    return (
        float(value >= config.accuracy_thresholds[0])
        if config.accuracy_thresholds
        else float(value)
    )


def _vote(completion: str) -> str | None:
    """The answer for the majority vote, without case, spaces and dollar signs."""
    answer = extract_answer(completion)
    return None if answer is None else "".join(answer.lower().replace("$", "").split())


def summary_line(result: Evaluation) -> str:
    """The accuracies in one line."""
    shown = ", ".join(f"{mode} accuracy {m.accuracy:.3f}" for mode, m in result.modes.items())
    return f"held out: {shown} on {result.prompts} prompts"


Scored = dict[str, list[ScoredGroup]]
"""The scored groups of each way of decoding."""


@dataclass
class Validation:
    """Evaluates ``trainer.validation.data`` after the steps of ``trainer.validation.steps``.

    Attributes:
        evaluate: Evaluates the weights that the engine has; gives the groups to its argument.
        record: Keeps the completions of a step, by the way of decoding.
        last: The last step that was validated, and its result.
    """

    evaluate: Callable[[Callable[[str, list[ScoredGroup]], None]], Evaluation]
    record: Callable[[int, Scored], None]
    last: tuple[int, Evaluation] | None = field(default=None, init=False)

    def __call__(self, step: int) -> StepStats:
        """Validate after ``step``, 0 before the first; returns what to log, as ``eval/...``.

        The accuracy of each way of decoding, the means of its rewards' components, and the time.
        """
        timer = PhaseTimer(f"step {step}", LONG_S if step else WAIT_S)
        scored: Scored = {}

        def keep(mode: str, groups: list[ScoredGroup]) -> None:
            scored.setdefault(mode, []).extend(groups)

        with timer("validation"):
            result = self.evaluate(keep)
            self.record(step, scored)
        self.last = (step, result)
        return {**validation_stats(result), "time/validation": timer.phases["validation"]}


def validation_stats(result: Evaluation) -> StepStats:
    """``eval/greedy`` and ``eval/sampled``, the accuracies; ``eval/greedy/format`` and the like."""
    stats: StepStats = {}
    for name, mode in result.modes.items():
        stats[f"eval/{name}"] = mode.accuracy
        stats |= {f"eval/{name}/{part}": value for part, value in mode.components.items()}
        stats |= {f"eval/{name}/vision/{part}": value for part, value in mode.vision.items()}
    return stats
