"""OpenRLHF: positional lists, a dict back."""


def reward_func(queries, prompts, labels):
    rewards = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        assert query.startswith(prompt)
        rewards.append(float(query.endswith(f"<answer>{label}</answer>")))
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"seen": [1.0] * len(rewards)}}
