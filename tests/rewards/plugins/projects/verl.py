"""As verl's functions: the data source picks the rule, and the row's own extra_info is read."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source == "hiyouga/geometry3k":
        return {"score": float(ground_truth in solution_str), "acc": 1.0}
    if data_source == "lab/count":
        return float(solution_str == ground_truth) + 0.5 * (extra_info["split"] == "train")
    raise NotImplementedError(f"no reward for {data_source=}")
