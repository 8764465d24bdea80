"""As LMM-R1's function: OpenRLHF's, with a boxed label."""

import re


def reward_func(queries, prompts, labels):
    rewards = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        wanted = re.search(r"\\boxed\{(.*?)\}", label).group(1)
        response = query[len(prompt) :]
        rewards.append(float(f"\\boxed{{{wanted}}}" in response))
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"length": [1.0] * len(rewards)}}
