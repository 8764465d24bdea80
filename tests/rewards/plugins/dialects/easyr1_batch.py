"""EasyR1: a batch of dicts in, a list of dicts out."""

REWARD_NAME = "counting"
REWARD_TYPE = "batch"


def compute_score(reward_inputs, format_weight=0.1):
    scores = []
    for row in reward_inputs:
        accuracy = float(f"<answer>{row['ground_truth']}</answer>" in row["response"])
        form = float(row["response"].startswith("<think>"))
        overall = (1 - format_weight) * accuracy + format_weight * form
        scores.append({"overall": overall, "format": form, "accuracy": accuracy})
    return scores
