"""As R1-Onevision's functions: the conversation's reply is the solution, an id tells the row."""


def accuracy_reward(completions, solution, **kwargs):
    triples = zip(completions, solution, kwargs["id"], strict=True)
    return [
        float(gold.removeprefix("<answer> ").removesuffix(" </answer>") in said[0]["content"])
        + 0.25 * row.startswith("onevision")
        for said, gold, row in triples
    ]
