"""TRL as R1-V, VLM-R1 and Video-R1 use it: conversations and columns."""

import re


def _text(completion):
    return completion[0]["content"]


def accuracy_reward(completions, solution, **kwargs):
    assert len(kwargs["prompts"]) == len(completions)
    assert kwargs["prompts"][0][-1]["role"] == "user"
    assert kwargs["problem_type"] == ["count"] * len(completions)
    assert kwargs["colour"] == ["red"] * len(completions)
    rewards = []
    for completion, gold in zip(completions, solution, strict=True):
        match = re.search(r"<answer>(.*?)</answer>", _text(completion))
        rewards.append(float(match is not None and match.group(1) == str(gold)))
    return rewards


def length_reward(completions, **kwargs):
    """Plain text: nothing here speaks of messages."""
    return [min(1.0, len(completion) / 100) for completion in completions]


def grid_reward(completions, image_grid_thw, image_path, **kwargs):
    pairs = zip(image_grid_thw, image_path, strict=True)
    return [float(grid[1] + len(path)) for grid, path in pairs]
