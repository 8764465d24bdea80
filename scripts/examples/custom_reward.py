"""Write your own reward function, and try it on a few completions.

    python scripts/examples/custom_reward.py

To use it in a run: ``rewards: {near: {type: path/to/file.py:near}}`` in the YAML file.
"""

from __future__ import annotations

from mmr1.config import read_rewards
from mmr1.rewards import RewardItem, build_composite_reward
from mmr1.rewards.reading.extract import extract_answer
from mmr1.types import Message, Sample, TextPart


def near(completion: str, answer: str, scale: float = 10.0) -> float:
    """1 for the right number, less with distance; 0 without a number.

    Parameters can be columns of the record, and settings such as ``scale``.
    """
    text = extract_answer(completion)
    try:
        distance = abs(float(text or "") - float(answer))
    except ValueError:
        return 0.0
    return max(0.0, 1.0 - distance / scale)


def main() -> None:
    rewards = read_rewards({"format": 0.5, "near": {"type": f"{__file__}:near", "scale": 4.0}})
    question = Message("user", (TextPart("How many cubes are there?"),))
    sample = Sample("1", (question,), answer="4")
    completions = [
        "<think>Two and two.</think><answer>4</answer>",
        "<think>I miss one.</think><answer>3</answer>",
        "<answer>many</answer>",
    ]
    with build_composite_reward(rewards) as scorer:
        for reward in scorer.score([RewardItem(text, sample) for text in completions]):
            print(reward.value, dict(reward.components), reward.status)


if __name__ == "__main__":
    main()
