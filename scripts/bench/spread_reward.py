"""A reward that tells a random model's completions apart: every group is to be learnt from."""


def reward(completion: str, answer: object = None, **sample: object) -> float:
    return len(set(completion)) / 100
