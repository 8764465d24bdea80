"""The ``data`` section: which samples are read, and how they become prompts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from mmr1.config.section import Fraction, Positive, Section


class CurriculumConfig(Section):
    """Which training samples come more often, by the share of completions that pass."""

    key: str = Field(
        description="Reward function that tells what passes, with values from 0 to 1; its mean "
        "over a group is the pass rate"
    )
    prefer: Literal["hard", "learnable"] = Field(
        "learnable",
        description="A drawn sample of pass rate s is kept with probability 4 s (1 - s); hard: "
        "1 - s (Kimi k1.5). One that was never scored is kept",
    )
    momentum: float = Field(
        0.5, ge=0, lt=1, description="Share of the pass rate so far in a new one"
    )
    floor: float = Field(
        0.05, gt=0, le=1, description="Least probability, so that no sample is gone for good"
    )


class DataConfig(Section):
    """Which samples are read, and how they become prompts."""

    @property
    def columns(self) -> dict[str, str]:
        """The columns that have other names than in EasyR1's rows: its name to theirs."""
        keys = (
            self.prompt_key,
            self.answer_key,
            self.image_key,
            self.video_key,
            self.system_key,
        )
        named = zip(("problem", "answer", "images", "videos", "system"), keys, strict=True)
        return {ours: theirs for ours, theirs in named if theirs is not None}

    @model_validator(mode="after")
    def _one_format(self) -> DataConfig:
        if self.columns and self.format not in (None, "easyr1"):
            raise ValueError(
                f"data.format={self.format} and column names: {', '.join(self.columns.values())} "
                "are columns of EasyR1's format; leave one of them out"
            )
        return self

    train: str | dict[str, float] | None = Field(
        None,
        description="Training data: a file, a folder or dataset@split; or a mapping of several to "
        "weights",
    )
    eval: str | None = Field(None, description="Evaluation data: a file, a folder or dataset@split")
    curriculum: CurriculumConfig | None = Field(
        None, description="Draw training samples by their running pass rate; default: all alike"
    )
    ptx: str | None = Field(
        None, description="Demonstrations for the PTX loss; needs algorithm.ptx_coef"
    )
    format: str | None = Field(
        None,
        description="Format of the rows (easyr1, verl, trl, ...); detected from their keys if not "
        "set",
    )
    prompt_key: str | None = Field(
        None,
        description="Column of the question; with it or one of the next keys, rows are read "
        "as EasyR1's. Default: problem",
    )
    answer_key: str | None = Field(None, description="Column of the answer. Default: answer")
    image_key: str | None = Field(None, description="Column of the images. Default: images")
    video_key: str | None = Field(None, description="Column of the videos. Default: videos")
    system_key: str | None = Field(
        None, description="Column of the record's own system prompt. Default: system"
    )
    prompt_template: str | None = Field(
        None, description="Name of a prompt template (think_answer, boxed, ...), or a .jinja file"
    )
    system_prompt: str | None = Field(
        None,
        description="System message of the conversations that have none of their own in their "
        "record",
    )
    chat_template: str | None = Field(
        None,
        description="A .jinja file in place of the model's chat template; saved beside checkpoints",
    )
    enable_thinking: bool | None = Field(
        None,
        description="Variable of this name, for a chat template that reads it; "
        "default: the template decides",
    )
    media_root: str | None = Field(
        None,
        description="Folder that media paths are relative to; default: the folder of the record "
        "file",
    )
    max_bad_fraction: Fraction = Field(
        0.0,
        description="Share of rows that may be unusable; they are dropped and listed in "
        "quarantine.jsonl. More than that stops the run",
    )
    media_workers: int | None = Field(
        None,
        ge=0,
        description="Processes that decode and preprocess media on a machine; ranks and engines "
        "share them, at least one each. 0: the trainer process does it. Default: one per four "
        "cores",
    )
    video_fps: float = Field(2.0, gt=0, description="Frames sampled per second of video")
    video_max_frames: Positive = Field(
        768, description="Maximum number of frames sampled from one video"
    )
    image_min_pixels: Positive | None = Field(
        None,
        description="Smaller images are enlarged to this area; default: that of the model's "
        "processor",
    )
    image_max_pixels: Positive | None = Field(
        None,
        description="Larger images are shrunk to this area; default: that of the model's processor",
    )
    video_min_pixels: Positive | None = Field(
        None,
        description="Smaller frames of a video are enlarged to this area; default: 128 tokens, as "
        "in qwen-vl-utils",
    )
    video_max_pixels: Positive | None = Field(
        None,
        description="Larger frames of a video are shrunk to this area; default: 768 tokens, as in "
        "qwen-vl-utils",
    )
    video_total_pixels: Positive | None = Field(
        None,
        description="Area of all sampled frames of a video together, a pair of frames counted as "
        "one; default: 115,200 tokens, as in qwen-vl-utils",
    )
