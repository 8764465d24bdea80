"""As EasyR1's files."""

REWARD_NAME = "shape"
REWARD_TYPE = "batch"


def compute_score(reward_inputs, format_weight=0.1):
    scores = []
    for given in reward_inputs:
        right = float(given["response"].endswith(f"\\boxed{{{given['ground_truth']}}}"))
        form = float("<think>" in given["response"])
        overall = (1 - format_weight) * right + format_weight * form
        scores.append({"overall": overall, "format": form, "accuracy": right})
    return scores
