"""verl: one solution."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "unit"
    assert extra_info["colour"] == "red"
    return {"score": float(f"<answer>{ground_truth}</answer>" in solution_str), "acc": 1.0}
