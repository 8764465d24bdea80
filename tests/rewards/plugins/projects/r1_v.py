"""As R1-V's functions: a tagged ``solution``, math-verify first and then the text itself."""

import re

from math_verify import parse, verify


def _inside(text):
    match = re.search(r"<answer>(.*?)</answer>", text)
    return (match.group(1) if match else text).strip()


def accuracy_reward(completions, solution, **kwargs):
    rewards = []
    for completion, gold in zip(completions, solution, strict=True):
        content, reward = completion[0]["content"], 0.0
        try:
            reward = float(verify(parse(gold), parse(content)))
        except Exception:  # as theirs, which hides that the alarm cannot be set
            reward = 0.0
        rewards.append(reward or 0.5 * float(_inside(content) == _inside(gold)))
    return rewards
