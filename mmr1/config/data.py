"""Where the samples come from: ``data``."""

from __future__ import annotations

from pydantic import Field

from mmr1.config.section import Fraction, Positive, Section


class DataConfig(Section):
    """Where the samples are and how they become prompts."""

    train: str | dict[str, float] | None = Field(
        None,
        description="Training data: a file, a folder, a dataset name@split; or several: weight",
    )
    eval: str | None = Field(None, description="Held-out data, named in the same way")
    ptx: str | None = Field(None, description="Demonstrations for the PTX term (ptx_coef)")
    format: str | None = Field(
        None, description="Row form (easyr1, verl, trl, ...); recognised by its keys if not set"
    )
    prompt_template: str | None = Field(
        None, description="Prompt template by name (think_answer, boxed, ...) or a .jinja file"
    )
    system_prompt: str | None = Field(None, description="Put before every conversation")
    media_root: str | None = Field(
        None,
        description="Folder of the media paths; by default that of the record file",
    )
    max_bad_fraction: Fraction = Field(
        0.0, description="Share of rows that may be unusable: dropped, counted and named"
    )
    media_workers: int | None = Field(
        None,
        ge=0,
        description="Processes that decode and prepare images and videos; 0: this one does; "
        "default: one for every four cores",
    )
    video_fps: float = Field(2.0, gt=0, description="Frames sampled per second of video")
    video_max_frames: Positive = Field(768, description="Most frames sampled of one video")
