"""As Video-R1's function: the first row's words for the type decide for the call."""

import re


def accuracy_reward(completions, solution, **kwargs):
    kind = kwargs["problem_type"][0]
    rewards = []
    for completion, gold in zip(completions, solution, strict=True):
        said, wanted = (
            re.search(r"<answer>\s*(.*?)\s*</answer>", text, re.DOTALL)
            for text in (completion[0]["content"], gold)
        )
        if said is None or wanted is None:
            rewards.append(0.0)
        elif kind == "multiple choice":
            rewards.append(float(said[1] == wanted[1]))
        elif kind == "numerical":
            rewards.append(float(round(float(said[1]), 2) == round(float(wanted[1]), 2)))
        elif kind == "regression":
            off = abs(float(said[1]) - float(wanted[1])) / abs(float(wanted[1]))
            rewards.append(1.0 - min(1.0, off))
        else:
            rewards.append(0.0)
    return rewards


def options_reward(completions, options, data_type, path, **kwargs):
    """Reads what the form has made something else of."""
    return [
        float(shown[0].startswith("A. ") and kind == "video" and file.endswith(".mp4"))
        for shown, kind, file in zip(options, data_type, path, strict=True)
    ]


def length_bonus(accuracy, token_ids, completion, *, shortest=4, longest=8):
    """0.2 for right answers of a good length."""
    return 0.2 * (accuracy > 0.1 and shortest <= len(token_ids) <= longest)


def share_of_best(completion, scores):
    return scores["accuracy"] / max(1.0, *scores.values())


def group_spread(completions, scores, **kwargs):
    best = max(score["accuracy"] for score in scores)
    return [best - score["accuracy"] for score in scores]
