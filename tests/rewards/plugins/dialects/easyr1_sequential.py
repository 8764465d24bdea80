"""EasyR1: one dict at a time."""

REWARD_NAME = "counting"
REWARD_TYPE = "sequential"


def compute_score(reward_input):
    right = f"<answer>{reward_input['ground_truth']}</answer>" in reward_input["response"]
    return {"overall": float(right), "length": float(reward_input["response_length"])}
