"""A reward that differs between the completions of a random model: every group has a signal."""


def reward(completion: str, answer: object = None, **sample: object) -> float:
    return len(set(completion)) / 100
