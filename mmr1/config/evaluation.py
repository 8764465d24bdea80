"""The ``eval`` section."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator

from mmr1.config.views import View, check_strength
from mmr1.section import TRAINING, Coefficient, Count, Need, Positive, Section, Share


def _evaluates(c: Any) -> bool:
    """True if a key of ``eval`` is set, besides the one that also ranks or labels completions."""
    return bool(c.eval.changed(accuracy_function=None) != EvalConfig())


def _of_eval_alone(c: Any) -> bool:
    """True if a key of ``eval`` is set that a run's own evaluation does not read."""
    return bool(c.eval.data or c.eval.models or c.eval.prompt or c.eval.output_dir)


class SampledConfig(Section):
    """Sampled completions, besides the greedy one."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("eval.sampled.best_of", "eval.sampled.n"),
            lambda c: c.eval.best_of is not None and c.eval.n < 2,
            "of one completion there is none to pick; raise eval.sampled.n",
            ("eval.sampled.best_of=math",),
            warns=True,
            commands=("policy", "evaluation"),
            command="eval",
        ),
    )

    n: Positive = Field(1, description="Completions per prompt")
    temperature: Coefficient = Field(1.0, description="Their sampling temperature")
    top_p: Share = Field(1.0, description="Their nucleus sampling, whatever rollout.top_p; 1: off")
    top_k: Count = Field(
        0,
        description="They are sampled from the k most probable tokens; 0: off",
    )
    best_of: str | None = Field(
        None, description="Reward function that picks one of the n completions: best-of-n"
    )


class EvalConfig(Section):
    """Evaluation (``mmr1 eval``, and at the end of ``mmr1 train``)."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("rollout.engine.colocate", "eval.vision_use"),
            lambda c: c.rollout.colocated and c.eval.vision_use,
            "the policy leaves its GPU to colocated engines while they evaluate; leave vision_use "
            "out, and measure a checkpoint by mmr1 eval",
            (
                "trainer.validation.data=x",
                "trainer.validation.steps=2",
                "trainer.checkpoints.save_steps=4",
                "rollout.engine.colocate=true",
                "eval.vision_use=true",
            ),
        ),
        Need(
            ("resources.engines", "eval.vision_use"),
            lambda c: c.engines > 1 and c.eval.vision_use,
            "one process computes it, which has one engine; leave resources.engines out",
            (
                "trainer.validation.data=x",
                "trainer.validation.steps=2",
                "trainer.checkpoints.save_steps=4",
                "resources.engines=2",
                "eval.vision_use=true",
            ),
            commands=("evaluation",),
            command="eval",
        ),
        Need(
            ("eval", "trainer.validation.data"),
            lambda c: c.samples and c.trainer.validation is None and _evaluates(c),
            "this run evaluates nothing without trainer.validation.data; mmr1 eval reads the "
            "section eval of its file",
            ("eval.limit=20",),
            warns=True,
            commands=TRAINING,
        ),
        Need(
            ("eval.data", "eval.models", "eval.prompt", "eval.output_dir"),
            lambda c: c.trainer.validation is not None and _of_eval_alone(c),
            "only mmr1 eval reads them; a run is evaluated on trainer.validation.data, by its own "
            "prompt",
            ("trainer.validation.data=x", "eval.prompt=direct"),
            warns=True,
            commands=TRAINING,
        ),
    )

    data: str | dict[str, str] | None = Field(
        None,
        description="Records to evaluate on, or several as NAME: records. A benchmark's name "
        "selects its prompt and scoring. null: trainer.validation.data",
    )
    models: dict[str, str] = Field(
        default_factory=dict, description="Models to evaluate, as NAME: path; empty: model.path"
    )
    sampled: SampledConfig | None = Field(
        SampledConfig(), description="Sampled completions, besides the greedy one; null: none"
    )
    limit: Positive | None = Field(None, description="Evaluate the first records only; null: all")
    accuracy_function: str | None = Field(
        None,
        description="Reward function that decides what is right; null: the first one not named "
        "format",
    )
    accuracy_thresholds: tuple[float, ...] = Field(
        (1.0,),
        description="An answer is right from this value of accuracy_function on. The first "
        "threshold gives the accuracy. Empty: the mean value is the accuracy",
    )
    group_by: str | None = Field(None, description="Record key to group results by; null: the task")
    prompt: str | None = Field(
        None,
        description="reason, direct (a prompt for the answer only), or a template as "
        "data.prompt_template takes it; null: the benchmark's, without one data.prompt_template",
    )
    views: dict[View, Share | None] = Field(
        default_factory=dict,
        description="Also decode greedily under other views of the pictures, as VIEW: strength; "
        "{noise: 0.5, blank: null} adds greedy_noise and greedy_blank. See rollout.views",
    )
    vision_use: bool = Field(
        False,
        description="Also measure how much completions depend on their pictures: the nats that a "
        "token loses with grey ones, and with those of another prompt; not under eval.views",
    )
    output_dir: str | None = Field(
        None,
        description="Folder for results and completions. An interrupted evaluation resumes from it",
    )

    @field_validator("views")
    @classmethod
    def _with_strength(cls, views: dict[View, Share | None]) -> dict[View, Share | None]:
        for view, strength in views.items():
            check_strength(view, strength)
        return views

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways of decoding that a validation has, by the names that it logs them under."""
        sampled = () if self.sampled is None else ("sampled",)
        return ("greedy", *sampled, *(f"greedy_{view}" for view in self.views))

    @property
    def n(self) -> int:
        """Sampled completions per prompt; 0 where there are none."""
        return 0 if self.sampled is None else self.sampled.n

    @property
    def best_of(self) -> str | None:
        """The reward function that picks one of the sampled completions."""
        return None if self.sampled is None else self.sampled.best_of
