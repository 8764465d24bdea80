"""What ``rollout.engine.engine_kwargs`` and ``rollout`` refuse, and why."""

from __future__ import annotations

import pytest

from mmr1.config import Config
from mmr1.config.checks import problems_of
from mmr1.engines.vllm_arguments import OWNED, PASSED, REFUSED

N_GRAMS = {"method": "ngram", "num_speculative_tokens": 3}


def config(**rollout) -> Config:
    return Config(model={"path": "model"}, data={"train": "rows.jsonl"}, rollout=rollout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_num_seq": 3}, r"max_num_seq: vLLM 0\.32 .* \(did you mean 'max_num_seqs'\?\)"),
        ({"seed": 1}, "seed: the run's own key seed sets it; leave it out"),
        ({"dtype": "float16"}, r"dtype: rollout\.engine\.dtype sets it"),
        (
            {"logits_processors": ["x:Y"]},
            "logits_processors: it changes what is sampled, and",
        ),
        ({"watermark_config": {"key": 1}}, "watermark_config: it changes what is sampled"),
        ({"generation_config": "vllm"}, "generation_config: the model's own stop tokens"),
        ({"override_generation_config": {"top_k": 5}}, "rollout has the sampling parameters"),
        ({"kv_offloading_size": 4.0}, "would outlive their weights"),
        ({"enable_eplb": True}, "new weights are loaded to where each expert was"),
        ({"prefill_context_parallel_size": 2}, "tensor_parallel_size times pipeline_parallel_size"),
        ({"pipeline_parallel_size": "two"}, "it is a number of GPUs, not 'two'"),
        (
            {"speculative_config": {**N_GRAMS, "rejection_sample_method": "synthetic"}},
            r"speculative_config\.rejection_sample_method: it accepts drafts without regard",
        ),
        (
            {"speculative_config": {**N_GRAMS, "synthetic_acceptance_length": 2.0}},
            r"speculative_config\.synthetic_acceptance_length: it accepts",
        ),
        ({"spec_method": "extract_hidden_states"}, "extract_hidden_states: mmr1 reads nothing"),
    ],
)
def test_what_would_change_the_distribution_is_refused_with_the_reason(arguments, message):
    with pytest.raises(ValueError, match=message):
        config(engine={"engine_kwargs": arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"speculative_config": N_GRAMS},
        {"speculative_config": {**N_GRAMS, "rejection_sample_method": "block"}},
        {"quantization": "fp8", "kv_cache_dtype": "fp8"},
        {"watermark": 0.1},  # of free cache blocks
    ],
)
def test_the_others_are_passed(arguments):
    engine = config(engine={"engine_kwargs": arguments}).rollout.engine
    assert engine.engine_kwargs == arguments


def test_each_name_is_in_one_list():
    assert not OWNED.keys() & REFUSED.keys()
    assert not PASSED & (OWNED.keys() | REFUSED.keys())


@pytest.mark.parametrize(
    "name",
    ["repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "bad_words",
     "logit_bias", "allowed_token_ids"],
)  # fmt: skip
def test_samplers_that_the_trainer_does_not_have_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: it makes the engine sample from another"):
        config(**{name: 1})


def test_min_p_and_drafts_are_refused_together():
    both = config(min_p=0.1, engine={"engine_kwargs": {"speculative_config": N_GRAMS}})
    (problem,) = [p for p in problems_of(both) if "min_p" in p]
    assert "vLLM takes no min_p where it verifies drafts" in problem


@pytest.mark.parametrize(
    ("engine", "rounds"),
    [
        ({}, False),
        ({"dtype": "float16"}, True),
        ({"engine_kwargs": {"kv_cache_dtype": "fp8"}}, True),
        ({"engine_kwargs": {"kv_cache_dtype": "auto"}}, False),
        ({"engine_kwargs": {"quantization": "fp8"}}, True),
    ],
)
def test_the_parity_check_knows_what_rounds(engine, rounds):
    made = Config(model={"path": "m", "dtype": "float32"}, rollout={"engine": engine})
    assert made.rounds_logprobs == rounds
    assert made.parity_tolerance == (0.1 if rounds else 1e-4)


def test_the_stages_of_a_pipeline_are_gpus_of_the_engine():
    two = {"engine_kwargs": {"pipeline_parallel_size": 2}, "tensor_parallel_size": 4}
    assert config(engine=two).rollout.gpus_per_engine == 8
    shared = config(engine={"type": "vllm", "colocate": True, **two}).changed(
        {"resources.ranks": 16}
    )
    assert (shared.rollout.gpus_per_engine, shared.engines) == (8, 2)
