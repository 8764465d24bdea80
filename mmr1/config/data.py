"""The ``data`` section: which samples are read, and how they become prompts."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from mmr1.section import OFFLINE, Coefficient, Count, Fraction, Need, Positive, Section, Share


class CurriculumConfig(Section):
    """Draws samples more or less often, by the share of their completions that pass."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("data.curriculum",),
            lambda c: c.data.curriculum is not None,
            "this command does not choose samples by their pass rates; leave it out",
            ("data.curriculum.function=math",),
            commands=OFFLINE,
            command="sft",
        ),
    )

    function: str = Field(
        description="Reward function that tells what passes, with values from 0 to 1; its mean "
        "over a group is the pass rate"
    )
    prefer: Literal["hard", "learnable"] = Field(
        "learnable",
        description="A drawn sample of pass rate s is kept with probability 4 s (1 - s); hard: "
        "1 - s (Kimi k1.5). One that was never scored is kept",
    )
    floor: Share = Field(0.05, description="Least probability, so that no sample is gone for good")


class ColumnsConfig(Section):
    """The columns of rows in EasyR1's format that have other names."""

    prompt_key: str = Field("problem", description="Column of the question")
    answer_key: str = Field("answer", description="Column of the answer")
    image_key: str = Field("images", description="Column of the images; several as left,right")
    video_key: str = Field("videos", description="Column of the videos; several as first,second")
    system_key: str = Field("system", description="Column of the record's own system prompt")


class ImageConfig(Section):
    """The sizes of images."""

    min_pixels: Positive | None = Field(
        None,
        description="Smaller images are enlarged to this area; null: that of the model's processor",
    )
    max_pixels: Positive | None = Field(
        None,
        description="Larger images are shrunk to this area; null: that of the model's processor, "
        "for Qwen's and their like at most 1,003,520, which are 1,280 tokens of Qwen2.5-VL",
    )

    resize: Literal["smart_resize", "easyr1", "llama_factory"] = Field(
        "smart_resize",
        description="How an image gets its size. smart_resize: limits and whole patches at once, "
        "as qwen-vl-utils; easyr1, llama_factory: scaled to these limits first as there, then by "
        "the model's processor within its own",
    )


class VideoConfig(Section):
    """The frames of videos, and their sizes."""

    fps: Coefficient = Field(2.0, description="Frames sampled per second of video")
    max_frames: Positive = Field(768, description="Maximum number of frames sampled from one video")
    num_frames: Positive | None = Field(
        None,
        description="Shows exactly this many of the sampled frames, evenly spread, some of a short "
        "video twice; null: all of them",
    )
    min_pixels: Positive | None = Field(
        None,
        description="Smaller frames are enlarged to this area; null: 128 tokens, as in "
        "qwen-vl-utils",
    )
    max_pixels: Positive | None = Field(
        None,
        description="Larger frames are shrunk to this area; null: 768 tokens, as in qwen-vl-utils",
    )
    total_pixels: Positive | None = Field(
        None,
        description="Area of all sampled frames of a video together, a pair of frames counted as "
        "one; null: 115,200 tokens, as in qwen-vl-utils",
    )
    backend: Literal["auto", "pyav", "decord"] = Field(
        "auto",
        description="Decoder of frames. auto is PyAV; decord does not tell damaged images, and "
        "refuses files that it reads wrongly",
    )


class DataConfig(Section):
    """The samples that are read, and how they become prompts."""

    train: str | dict[str, float] | None = Field(
        None,
        description="Training data: a file, a folder or dataset@split; or a mapping of several to "
        "weights",
    )
    train_batch_size: Positive = Field(
        16,
        description="Prompts, demonstrations or other records per step (EasyR1: "
        "rollout_batch_size)",
    )
    format: str | ColumnsConfig | None = Field(
        None,
        description="Format of the rows (easyr1, verl, ...), a function that makes it of a row "
        "(file.py:function), or the names of their columns; null: detected from their keys",
    )
    prompt_template: str | None = Field(
        None,
        description="Prompt template: a name such as think_answer or boxed, or a .jinja or .txt "
        "file; or FILE.py:function, called with the columns of each record; or FILE.py:CONSTANT, a "
        "text of another project's file",
    )
    system_prompt: str | None = Field(
        None,
        description="System message of the conversations that have none of their own in their "
        "record; or FILE.py:CONSTANT, a text of another project's file",
    )
    chat_template: str | None = Field(
        None,
        description="A .jinja file in place of the model's chat template; saved beside checkpoints",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="Variables of the chat template, e.g. {enable_thinking: false}",
    )
    media_root: str | None = Field(
        None,
        description="Folder that media paths are relative to; null: the folder of the record file",
    )
    image: ImageConfig = ImageConfig()
    video: VideoConfig = VideoConfig()
    curriculum: CurriculumConfig | None = Field(
        None, description="Draw training samples by their running pass rate; null: all alike"
    )
    max_bad_fraction: Fraction = Field(
        0.0,
        description="Share of rows that may be unusable; they are dropped and listed in "
        "quarantine.jsonl. More than that stops the run",
    )
    num_workers: Count | None = Field(
        None,
        description="Processes that decode and preprocess media on a machine; ranks and engines "
        "share them, at least one each. 0: the trainer process does it. null: one per four cores",
    )

    @property
    def columns(self) -> dict[str, str]:
        """The columns that have other names than in EasyR1's rows: its name to theirs."""
        if not isinstance(self.format, ColumnsConfig):
            return {}
        of = self.format
        named = {
            "problem": of.prompt_key,
            "answer": of.answer_key,
            "images": of.image_key,
            "videos": of.video_key,
            "system": of.system_key,
        }
        return {ours: theirs for ours, theirs in named.items() if ours != theirs}

    @property
    def format_name(self) -> str | None:
        """The name of the rows' format; None where it is detected. Named columns are EasyR1's."""
        return "easyr1" if isinstance(self.format, ColumnsConfig) else self.format
