"""EasyR1, first generation: one answer."""


def compute_score(predict_str: str, ground_truth: str) -> dict[str, float]:
    return {"overall": float(f"<answer>{ground_truth}</answer>" in predict_str)}
