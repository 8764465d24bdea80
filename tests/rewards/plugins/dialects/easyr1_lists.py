"""EasyR1, second generation: lists of answers."""


def compute_score(predicts, ground_truths, format_weight: float = 0.1):
    return [
        {"overall": (1 - format_weight) * float(f"<answer>{gold}</answer>" in predict)}
        for predict, gold in zip(predicts, ground_truths, strict=True)
    ]
