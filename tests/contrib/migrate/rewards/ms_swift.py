"""As ms-swift's plugins: a class whose objects are called with texts and columns."""


class ORM:
    def __init__(self, args=None, **kwargs):
        self.args = args

    def __call__(self, **kwargs):
        raise NotImplementedError


class Accuracy(ORM):
    def __call__(self, completions, solution, **kwargs):
        return [
            float(said.strip() == gold.strip())
            for said, gold in zip(completions, solution, strict=True)
        ]


class AsyncAccuracy(ORM):
    async def __call__(self, completions, solution, **kwargs):
        return Accuracy()(completions, solution, **kwargs)


class Agent(ORM):
    def __call__(self, infer_requests, ground_truths):
        return []


class Generative(ORM):
    def __call__(self, inputs, **kwargs):
        return []


class Plain:
    """No reward function at all."""


orms = {"accuracy": Accuracy}
