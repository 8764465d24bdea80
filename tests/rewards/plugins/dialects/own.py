"""mmr1's own dialect."""


def reward(completion: str, answer, **sample) -> float:
    right = f"<answer>{answer}</answer>" in completion
    return float(right) + 0.25 * (sample["task"] == "count")


def shortest(completion: str, *, limit: int = 100) -> float:
    return max(0.0, 1 - len(completion) / limit)
