"""As Open-R1-Video's function: letters in a tagged solution."""

import re


def accuracy_reward(completions, solution, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    rewards = []
    for content, gold in zip(contents, solution, strict=True):
        wanted = re.search(r"<answer>(.*?)</answer>", gold).group(1).strip()
        said = re.search(r"<answer>(.*?)</answer>", content)
        rewards.append(float(said is not None and said.group(1).strip() == wanted))
    return rewards
