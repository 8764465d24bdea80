"""verl: lists of everything."""


def compute_score(data_sources, solution_strs, ground_truths, extra_infos, bonus=0.0):
    return [
        float(f"<answer>{gold}</answer>" in solution) + bonus
        for solution, gold in zip(solution_strs, ground_truths, strict=True)
    ]
