"""The data of the small environment: demonstrations, and the seeds of its episodes.

    python scripts/recipes/small_env/data.py FOLDER SEED

Demonstrations of two kinds: they say where the flag is, and they make one random move after others.
None shows a way to the flag.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from PIL import Image

from mmr1.config import AgentConfig
from mmr1.config.file import load_config
from mmr1.data.record import write_records
from mmr1.types import MediaRef, Message, Sample, TextPart

READINGS, MOVES, EPISODES = 480, 120, 512
QUESTION, TASK = "Where is the flag?", "Walk to the flag."


def main(folder: Path, seed: int) -> None:
    """Write ``sft.jsonl``, ``rl.jsonl``, and ``eval.jsonl`` with each start once."""
    config = load_config(Path(__file__).with_name("rl.yaml")).environment
    assert isinstance(config, AgentConfig)
    options = config.options
    lake = gymnasium.make(options["id"], render_mode="rgb_array", **options["make"])
    rng = np.random.default_rng(seed)
    (folder / "boards").mkdir(parents=True)
    shown = [_reading(lake, rng, folder, n) for n in range(READINGS)]
    shown += [_moves(lake, rng, folder, n, options) for n in range(MOVES)]
    write_records(folder / "sft.jsonl", shown)
    write_records(
        folder / "rl.jsonl", (_episode(int(n)) for n in rng.integers(2**31, size=EPISODES))
    )
    write_records(folder / "eval.jsonl", map(_episode, _seeds_of_starts(lake)))


def _reading(lake: Any, rng: np.random.Generator, folder: Path, number: int) -> Sample:
    """Where the flag is, seen from where up to two random moves led."""
    moves = rng.integers(3)
    lake.reset(seed=int(rng.integers(2**31)))
    while any(lake.step(int(rng.integers(lake.action_space.n)))[2] for _ in range(moves)):
        lake.reset(seed=int(rng.integers(2**31)))
    board = lake.unwrapped.desc
    down, right = np.argwhere(board == b"G")[0] - divmod(lake.unwrapped.s, board.shape[1])
    words = ("up", "", "down")[np.sign(down) + 1], ("left", "", "right")[np.sign(right) + 1]
    asked = Message("user", (TextPart(QUESTION), _picture(lake, folder)))
    said = Message("assistant", (TextPart(" ".join(filter(None, words))),))
    return Sample(f"reading-{number}", (asked, said))


def _moves(
    lake: Any, rng: np.random.Generator, folder: Path, number: int, options: dict[str, Any]
) -> Sample:
    """A random move, after up to as many as leave a turn for it."""
    lake.reset(seed=int(rng.integers(2**31)))
    messages = [Message("user", (TextPart(TASK), _picture(lake, folder)))]
    before = rng.integers(options["max_steps"])
    while True:
        action = int(rng.integers(len(options["actions"])))
        messages.append(Message("assistant", (TextPart(options["actions"][action]),)))
        if len(messages) > 2 * before or lake.step(action)[2]:
            return Sample(f"moves-{number}", tuple(messages))
        messages.append(Message("user", (_picture(lake, folder),)))


def _picture(lake: Any, folder: Path) -> MediaRef:
    pixels = lake.render()
    path = folder / f"boards/{lake.unwrapped.s}.png"
    if not path.exists():
        Image.fromarray(pixels).save(path)
    return MediaRef("image", path)


def _episode(seed: int) -> Sample:
    return Sample(f"seed-{seed}", (Message("user", (TextPart(TASK),)),), meta={"seed": seed})


def _seeds_of_starts(lake: Any) -> Iterator[int]:
    """The first seed of each start."""
    left = set(np.flatnonzero(lake.unwrapped.desc == b"S").tolist())
    seed = 0
    while left:
        if (place := lake.reset(seed=seed)[0]) in left:
            left.remove(place)
            yield seed
        seed += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
