"""How held-out prompts are decoded: by keys of their own, whatever the rollout's are."""

from __future__ import annotations

from mmr1.config import SamplingConfig
from mmr1.config.file import config_from
from mmr1.trainer.validation.evaluate import Decoding, decodings


def test_sampled_completions_have_their_own_sampling():
    """EasyR1's validation: temperature 0.6 and top_p 0.95, beside a rollout without limits."""
    values = {
        "model": {"path": "m"},
        "rollout": {
            "temperature": 0.8,
            "top_p": 0.5,
            "top_k": 50,
            "min_p": 0.1,
            "stop": ["x"],
            "max_response_length": 9,
        },
        "eval": {"sampled": {"n": 4, "temperature": 0.6, "top_p": 0.95, "top_k": 20}},
    }
    sampled = decodings(config_from(values))["sampled"]
    assert sampled.n == 4
    assert sampled.sampling == SamplingConfig(
        temperature=0.6, top_p=0.95, top_k=20, stop=("x",), max_tokens=9
    )
    values["eval"] = {}
    assert decodings(config_from(values))["sampled"] == Decoding(
        1,
        SamplingConfig(stop=("x",), max_tokens=9),
    )
