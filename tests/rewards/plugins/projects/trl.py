"""As TRL's documentation has it for several tasks: None for the rows of another."""


def math_reward(prompts, completions, task, answer, **kwargs):
    return [
        float(said[0]["content"] == gold) if kind == "math" else None
        for said, gold, kind in zip(completions, answer, task, strict=True)
    ]


def code_reward(prompts, completions, task, **kwargs):
    return [
        float("def" in said[0]["content"]) if kind == "code" else None
        for said, kind in zip(completions, task, strict=True)
    ]


def length_reward(completions, completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def logs(completions, log_metric, **kwargs):
    return [0.0] * len(completions)
