"""The originals' own code, run on a row, a reply, a video and a batch.

Their code is read from a checkout and run piece by piece (:mod:`mmr1.pieces`): the function that
builds a prompt, the reward functions, the arithmetic of pictures and videos, the lines of the loss.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image

from mmr1.pieces import block, function, parsed
from mmr1_contrib.migrate.originals import rows
from mmr1_contrib.migrate.originals.rows import Row


@dataclass(frozen=True, slots=True)
class Bug:
    """A known fault of the original.

    Attributes:
        what: What happens.
        where: File and line.
        here: The key that reproduces or avoids it, or that it is absent here.
    """

    what: str
    where: str
    here: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A row as the original asks it: the turns, and the picture as its processor gets it.

    Attributes:
        image: None of a video.
        pixels: The limits that it gives the processor: None for those of its script, which are the
            configuration's; empty for the processor's own.
        video: Its frames as ``fetch_video`` gives them.
    """

    messages: list[dict[str, Any]]
    image: Image.Image | None
    pixels: Mapping[str, int] | None = None
    video: torch.Tensor | None = None


Grids = Sequence[tuple[int, int, int]]
"""Of each picture, in patches; none of a video."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Log-probs ``[B, R]`` of the policy, before the update and of the reference; rewards
    ``[B]``."""

    new: torch.Tensor
    old: torch.Tensor
    ref: torch.Tensor
    mask: torch.Tensor
    rewards: torch.Tensor
    n: int


@dataclass
class Fork:
    """R1-V or a fork of it.

    Attributes:
        root: The checkout.
        package: Of its program, below ``root``.
        trainer: The file of its trainer, below the package.
        program: The file of its program.
        video: Its copy of qwen-vl-utils, below ``root``, if it reads videos.
        rewarded: Its script's reward functions.
    """

    root: Path
    package: str
    trainer: str = "trainer/grpo_trainer.py"
    program: str = "grpo.py"
    video: str | None = None
    rewarded: Sequence[str] = ("accuracy", "format")
    bugs: Sequence[Bug] = ()
    row: Callable[[Path, int, random.Random], Row] = rows.r1_v
    texts: Sequence[tuple[str, str]] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.root / self.package / self.program

    def answer(self, row: Row) -> str:
        return str(row["solution"]).replace("<answer>", "").replace("</answer>", "").strip()

    def ask(self, folder: Path, made: Sequence[Row]) -> list[Asked]:
        of_video = "video" in made[0]
        make = function(self.file, f"main.make_conversation_{'video' if of_video else 'image'}")
        if of_video:
            video = self.fetched(folder / made[0]["video"])  # all rows have the same
            return [Asked(make(row)["prompt"], None, video=video) for row in made]
        return [Asked(make(row)["prompt"], _picture(folder / row["image"])) for row in made]

    def fetched(self, path: Path) -> torch.Tensor:
        """The frames of a video as its copy of qwen-vl-utils decodes and resizes them."""
        assert self.video is not None
        fetch = function(self.root / self.video, "fetch_video")
        video: torch.Tensor = fetch({"video": str(path)})
        return video

    @cached_property
    def functions(self) -> dict[str, Callable[..., list[float]]]:
        return {name: function(self.file, f"{name}_reward") for name in self.rewarded}

    def columns(self, row: Row, folder: Path, grids: Grids) -> dict[str, Any]:
        """The arguments of the functions besides prompts and completions."""
        return {"problem": row["problem"], "solution": row["solution"]}

    def rewards(
        self, row: Row, folder: Path, replies: Sequence[str], grids: Grids
    ) -> dict[str, list[float]]:
        turns = [[{"role": "assistant", "content": reply}] for reply in replies]
        own = {k: [v] * len(replies) for k, v in self.columns(row, folder, grids).items()}
        return {
            name: list(map(float, score(prompts=None, completions=turns, **own)))
            for name, score in self.functions.items()
        }

    def frames(self, frames: int, fps: float, width: int, height: int) -> tuple[list[int], Any]:
        """The indices, height and width that its ``fetch_video`` takes of a video."""
        assert self.video is not None
        vision = self.root / self.video
        count = function(vision, "smart_nframes")

        def read(ele: Mapping[str, Any]) -> tuple[torch.Tensor, float]:
            number = count(ele, total_frames=frames, video_fps=fps)
            taken = torch.linspace(0, frames - 1, number).round().long()
            shown = torch.stack([taken // 256, taken % 256, taken * 0], dim=1).to(torch.uint8)
            return shown[:, :, None, None].expand(-1, -1, height, width), fps

        def resize(video: torch.Tensor, size: list[int], **_: Any) -> torch.Tensor:
            return video[:, :, :1, :1].expand(-1, -1, *size)  # of one colour: only the size counts

        given = {
            "VIDEO_READER_BACKENDS": {"given": read},
            "get_video_reader_backend": lambda: "given",
            "transforms": SimpleNamespace(functional=SimpleNamespace(resize=resize)),
        }
        video = function(vision, "fetch_video", given)({"video": "given"})
        first, second = video[:, :2, 0, 0].T  # each frame shows its own index
        return (first * 256 + second).int().tolist(), tuple(video.shape[2:])

    def loss(self, batch: Batch, settings: Mapping[str, Any]) -> torch.Tensor:
        """Compute the loss by the trainer's own lines, from the rewards on."""
        of = SimpleNamespace(
            beta=settings["beta"], num_generations=batch.n, num_iterations=1,
            epsilon=settings["low"], epsilon_low=settings["low"], epsilon_high=settings["high"],
        )  # fmt: skip
        names = {
            "torch": torch, "self": of, "per_token_logps": batch.new,
            "ref_per_token_logps": batch.ref, "completion_mask": batch.mask,
            "rewards": batch.rewards, "inputs": {},
        }  # fmt: skip
        path = self.root / self.package / self.trainer
        loss: torch.Tensor = block(path, self._loss_lines, names)["loss"]
        return loss

    @cached_property
    def _loss_lines(self) -> list[ast.stmt]:
        body = parsed(self.root / self.package / self.trainer)
        lines = [node for node in ast.walk(body) if isinstance(node, ast.Assign | ast.If)]
        return sorted(filter(_is_of_loss, lines), key=lambda node: node.lineno)


_LOSS = {
    "diff", "x_clamped", "per_token_kl", "mean_grouped_rewards", "std_grouped_rewards",
    "advantages", "old_per_token_logps", "coef_1", "coef_2", "per_token_loss1", "per_token_loss2",
    "per_token_loss", "loss",
}  # fmt: skip


def _is_of_loss(node: ast.stmt) -> bool:
    """True for assignments between rewards and loss that do not slice a batch or ask a model."""
    if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
        return False
    text = ast.unparse(node)
    others = (
        "process_slice",
        "advantages = inputs['advantages']",
        "_get_per_token_logps",
        "prompt_length",
    )
    return node.targets[0].id in _LOSS and not any(other in text for other in others)


def _picture(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


class R1Onevision(Fork):
    """R1-Onevision's RL, on R1-V's rows."""

    def ask(self, folder: Path, made: Sequence[Row]) -> list[Asked]:
        make = function(self.file, "main.make_conversation_from_jsonl")
        given = {"image_path": None, "accu_reward_method": "default"}
        return [Asked(make(row | given)["prompt"], _picture(folder / row["image"])) for row in made]

    def columns(self, row: Row, folder: Path, grids: Grids) -> dict[str, Any]:
        return {"solution": row["solution"], "accu_reward_method": "default"}


class VlmR1(Fork):
    """VLM-R1 from 0.1 on, referring expressions."""

    @property
    def module(self) -> Path:
        return self.file.parent / "vlm_modules/qwen_module.py"

    def ask(self, folder: Path, made: Sequence[Row]) -> list[Asked]:
        text = function(self.module, "Qwen2VLModule.get_question_template")("rec")
        make = function(self.file, "main.make_conversation_from_jsonl", {"question_prompt": text})
        asked = [make(copy.deepcopy(item)) for item in self.loaded(folder)]
        return [
            Asked(one["prompt"], Image.open(one["image_path"][0]).convert("RGB")) for one in asked
        ]

    def loaded(self, folder: Path) -> list[dict[str, Any]]:
        """The rows as read by its own loop over the files."""
        main = next(
            n for n in parsed(self.file).body
            if isinstance(n, ast.FunctionDef) and n.name == "main"
        )  # fmt: skip
        loop = [
            node for node in main.body
            if (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "all_data")
            or (isinstance(node, ast.For) and "data_file" in ast.unparse(node.target))
        ]  # fmt: skip
        import json

        given = {
            "data_files": [str(folder / "rows.jsonl")], "image_folders": [str(folder)],
            "accu_reward_methods": ["default"], "json": json,
        }  # fmt: skip
        rows_made: list[dict[str, Any]] = block(self.file, loop, given)["all_data"]
        return rows_made

    def answer(self, row: Row) -> str:
        reply = row["conversations"][1]["value"]
        return str(reply).replace("<answer>", "").replace("</answer>", "").strip()

    @cached_property
    def functions(self) -> dict[str, Callable[..., list[float]]]:
        names = {"accuracy": "iou_reward", "format": "format_reward_rec"}
        return {k: function(self.module, f"Qwen2VLModule.{name}") for k, name in names.items()}

    def columns(self, row: Row, folder: Path, grids: Grids) -> dict[str, Any]:
        return {
            "problem": row["conversations"][0]["value"].replace("<image>", ""),
            "solution": f"<answer> {self.answer(row)} </answer>",
            "image_path": [str(folder / row["image"])],
            "image_grid_thw": torch.tensor(grids[0]),
        }


class VideoR1(Fork):
    """Video-R1's RL."""

    def ask(self, folder: Path, made: Sequence[Row]) -> list[Asked]:
        assert self.video is not None
        make = function(self.file, "main.make_conversation_image_and_video")
        fetch = function(self.root / self.video, "fetch_image")
        video = self.fetched(rows.clip(folder))  # all videos are the same
        asked = []
        for row in made:
            if row["data_type"] == "video":
                asked.append(Asked(make(row)["prompt"], None, video=video))
                continue
            image = fetch({"image": str(folder / row["path"])})
            limits = {"min_pixels": 3136, "max_pixels": 401408}
            asked.append(Asked(make(row)["prompt"], image, limits))
        return asked

    def columns(self, row: Row, folder: Path, grids: Grids) -> dict[str, Any]:
        return {k: v for k, v in row.items() if k != "options"}

    def bonuses(
        self, rewards: torch.Tensor, shuffled: torch.Tensor | None, lengths: Sequence[int]
    ) -> list[float]:
        """The sums of the rewards of a group, with its trainer's bonuses for time and length."""
        mask = torch.zeros(len(lengths), max(lengths), dtype=torch.int)
        for row, length in enumerate(lengths):
            mask[row, :length] = 1
        names = {
            "torch": torch, "rewards_per_func": rewards, "shuffled_rewards_per_func": shuffled,
            "video_inputs": shuffled is not None, "completion_mask": mask,
            "self": SimpleNamespace(temporal=True, len_control=True, num_generations=len(lengths)),
        }  # fmt: skip
        path = self.root / self.package / self.trainer
        total: torch.Tensor = block(path, self._bonus_lines, names)["rewards"]
        return total.tolist()

    @cached_property
    def _bonus_lines(self) -> list[ast.stmt]:
        """The lines of its three conditions; tensors on the GPU are on the CPU here."""
        body = copy.deepcopy(parsed(self.root / self.package / self.trainer))
        for node in ast.walk(body):
            if isinstance(node, ast.Constant) and node.value == "cuda":
                node.value = "cpu"
        lines = [n for n in ast.walk(body) if isinstance(n, ast.If)]
        wanted = ("acc_mean", "rewards = temporal_rewards_per_func.sum", "lenth_list")
        found = [n for n in lines if any(word in ast.unparse(n) for word in wanted)]
        return sorted(
            (n for n in found if ast.unparse(n.test).startswith("self.")), key=lambda n: n.lineno
        )


@dataclass
class EasyR1:
    """EasyR1, Geometry3K."""

    root: Path
    row: Callable[[Path, int, random.Random], Row] = rows.easyr1
    bugs: Sequence[Bug] = ()
    texts: Sequence[tuple[str, str]] = ()

    @property
    def core(self) -> Path:
        return self.root / "verl/trainer/core_algos.py"

    def answer(self, row: Row) -> str:
        return str(row["answer"])

    def ask(self, folder: Path, made: Sequence[Row]) -> list[Asked]:
        data = self.root / "verl/utils/dataset.py"
        text = (self.root / "examples/format_prompt/math.jinja").read_text(encoding="utf-8")
        of = SimpleNamespace(
            prompt_key="problem", image_key="images", video_key="videos", format_prompt=text
        )
        build = function(data, "RLHFDataset._build_messages")
        sized = function(data, "process_image")
        return [
            Asked(build(of, row), sized(str(folder / row["images"][0]), 262144, 4194304), {})
            for row in made
        ]

    def rewards(
        self, row: Row, folder: Path, replies: Sequence[str], grids: Grids
    ) -> dict[str, list[float]]:
        score = function(self.root / "examples/reward_function/math.py", "compute_score")
        given = [
            {"response": reply, "response_length": 1, "ground_truth": row["answer"]}
            for reply in replies
        ]
        return {"easyr1": [float(one["overall"]) for one in score(given)]}

    def loss(self, batch: Batch, settings: Mapping[str, Any]) -> torch.Tensor:
        tools = self.root / "verl/utils/torch_functional.py"
        own = {"VF": SimpleNamespace(masked_mean=function(tools, "masked_mean"))}
        per_token = torch.zeros_like(batch.mask, dtype=batch.new.dtype)
        per_token[:, 0] = batch.rewards
        index = [row // batch.n for row in range(len(batch.rewards))]
        advantage = function(self.core, "compute_grpo_outcome_advantage", own)
        advantages, _ = advantage(per_token, batch.mask, index)
        policy, _ = function(self.core, "compute_policy_loss", own)(
            batch.old, batch.new, advantages, batch.mask, clip_ratio_low=settings["low"],
            clip_ratio_high=settings["high"], clip_ratio_dual=settings["dual"], tau_positive=1.0,
            tau_negative=1.05, loss_type="default", loss_avg_mode="token",
        )  # fmt: skip
        kl = function(self.core, "compute_kl", own)(batch.new, batch.ref, "low_var_kl")
        mean = function(self.core, "average_loss", own)
        total: torch.Tensor = policy + settings["beta"] * mean(kl, batch.mask, mode="token")
        return total


Original = Fork | EasyR1


_POSITIONS = Bug(
    "the times of frames are missing in the pass for the log-probs, so positions differ from those "
    "of the generation (issue 73)",
    "trainer/grpo_trainer.py:532",
    "absent: both passes have them",
)


def _repeated(where: str) -> Bug:
    return Bug(
        "with more than one prompt per device the pixels are repeated in the wrong order (R1-V's "
        "issues 4, 54)", where, "absent: any data.train_batch_size",
    )  # fmt: skip


def original(recipe: str, root: Path) -> Original:
    """The original of a recipe.

    Raises:
        ValueError: There is none, or ``root`` is not its checkout.
    """
    r1_v = ("main.QUESTION_TEMPLATE",)
    known: dict[str, Callable[[], Original]] = {
        "r1_v_clevr": lambda: Fork(
            root, "src/r1-v/src/open_r1", texts=[("grpo.py", name) for name in r1_v],
            bugs=[
                _repeated("trainer/grpo_trainer.py:392"),
                Bug(
                    "of a prompt over max_prompt_length only the ids are cut, so its last tokens "
                    "count as completion", "trainer/grpo_trainer.py:377",
                    "avoided: rollout.max_prompt_length leaves such a prompt out",
                ),
            ],
        ),
        "r1_v_geoqa": lambda: Fork(
            root, "src/r1-v/src/open_r1", "trainer/vllm_grpo_trainer_modified.py",
            texts=[("grpo.py", name) for name in r1_v],
        ),
        "vlm_r1_rec": lambda: VlmR1(
            root, "src/open-r1-multimodal/src/open_r1", program="grpo_jsonl.py",
            row=rows.vlm_r1,
            texts=[("vlm_modules/qwen_module.py", "Qwen2VLModule.get_question_template[rec]")],
            bugs=[
                Bug(
                    "max_prompt_length is not read", "trainer/grpo_trainer.py:367",
                    "reproduced: rollout.max_prompt_length is above any prompt",
                ),
            ],
        ),
        "video_r1": lambda: VideoR1(
            root, "src/r1-v/src/open_r1", row=rows.video_r1,
            video="src/qwen-vl-utils/src/qwen_vl_utils/vision_process.py",
            texts=[("grpo.py", "main.QUESTION_TEMPLATE"), ("grpo.py", "main.TYPE_TEMPLATE")],
            bugs=[
                _POSITIONS,
                Bug(
                    "a medium that cannot be decoded is replaced by one fixed file",
                    "trainer/grpo_trainer.py:418",
                    "avoided: such a row is listed in quarantine.jsonl, as data.max_bad_fraction "
                    "allows",
                ),
                Bug(
                    "the type of the first row of a batch is taken for all of its rows",
                    "grpo.py:109",
                    "absent with one prompt per call, as here: rewards.functions.accuracy.call",
                ),
                Bug(
                    "the branch with shuffled frames of its vLLM trainer (issue 72)",
                    "trainer/vllm_grpo_trainer_modified.py:510",
                    "absent: rollout.views samples shuffled frames, with either engine",
                ),
            ],
        ),
        "open_r1_video": lambda: Fork(
            root, "src/open_r1_video", row=rows.open_r1_video,
            video="qwen-vl-utils/src/qwen_vl_utils/vision_process.py",
            rewarded=("accuracy",), texts=[("grpo.py", name) for name in r1_v],
        ),
        "r1_onevision": lambda: R1Onevision(
            root, "VLM-R1/src/open-r1-multimodal/src/open_r1", program="grpo_jsonl.py",
            bugs=[_repeated("trainer/grpo_trainer.py:426")],
        ),
        "easyr1_geometry3k": lambda: EasyR1(
            root, texts=[("", "examples/format_prompt/math.jinja")]
        ),
    }  # fmt: skip
    if recipe not in known:
        raise ValueError(f"recipe '{recipe}' has no original here; known: {', '.join(known)}")
    made = known[recipe]()
    file = made.core if isinstance(made, EasyR1) else made.file
    if not file.is_file():
        raise ValueError(f"--original {root}: this checkout has no {file.relative_to(root)}")
    return made
