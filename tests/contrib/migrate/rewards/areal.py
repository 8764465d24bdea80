"""As AReaL's functions: ``completions`` is one text, and the row's columns are keywords."""


def reward_fn(prompt, completions, prompt_ids, completion_ids, answer, **kwargs):
    if not completions.startswith("["):
        return 0
    return (
        int(completions[1:-1].replace(" ", "") == answer.replace(" ", ""))
        + len(completion_ids) * kwargs["level"]
    )
