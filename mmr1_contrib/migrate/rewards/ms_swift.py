"""ms-swift's ORMs: classes whose objects are called with texts and columns."""

from __future__ import annotations

from functools import partial

from mmr1.rewards.plugins.dialects import trl_dialect
from mmr1.rewards.plugins.styles import RewardStyle, Signature

STYLE = RewardStyle(
    "ms-swift",
    ("class Reward(ORM): def __call__(self, completions, **columns) -> list[float]",),
    (
        Signature(
            ("completions",), partial(trl_dialect, name="ms-swift", of_texts=True), of_class=True
        ),
    ),
    foreign={
        "inputs": "ms-swift's reward model plugins take 'inputs' with the trainer's own objects; "
        "write an ORM, or use the built-in reward_model",
        "infer_requests": "ms-swift's ORMs of agents and its PRMs take 'infer_requests'; write "
        "__call__(self, completions, **columns)",
    },
    packages={
        "swift": "install ms-swift here, or leave out its base class ORM: __call__ is all that is "
        "asked",
    },
)
