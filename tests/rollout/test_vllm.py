"""A real vLLM engine in its own process: parity, weight updates, failures."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from scipy.stats import chi2
from transformers import AutoModelForImageTextToText

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.config.speculative import RejectionSampleMethod
from vllm.engine.arg_utils import EngineArgs
from vllm.usage.usage_lib import UsageContext

from mmr1.config import Config, NewLoraConfig, RolloutConfig, SamplingConfig, ViewsConfig
from mmr1.data.record import read_records
from mmr1.engines.vllm_arguments import OWNED, PASSED, REFUSED
from mmr1.rollout.build import build_engine
from mmr1.rollout.build_vllm import build_vllm_engine
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.engine_process import EngineError, EngineProcess
from mmr1.rollout.prefetching import Prefetching
from mmr1.rollout.protocol import Finished, complete
from mmr1.rollout.vllm_settings import cpu_settings, further_arguments, gpu_settings
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.models.lora import add_adapters
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.weights import model_weights
from mmr1.trainer.sampling.open_groups import OpenGroup
from mmr1.trainer.sampling.other_views import by_own_view
from mmr1.trainer.sampling.parity import ParityError, check_parity
from mmr1.trainer.sampling.plan import planner
from mmr1.types import MediaRef, Message, Prompt, Reward, Sample, ScoredGroup, TextPart
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.asking import asks, completed
from tests.padded_forward import padded_scores
from tests.rollout.vllm_engines import BLOCK, SAMPLING, counted, counting_engine, shake

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def parts(tiny_model, tmp_path_factory):
    family = load_family(str(tiny_model))
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    media = MediaCache(family.prepare_media)
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        full_determinism=True,
        rollout={"max_prompt_length": 64, "max_response_length": 64},
        trainer={"threads": 1},
    )
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    engine = build_engine(config, family, media, log, None)
    yield family, model, media, engine
    engine.close()


@pytest.fixture(scope="module")
def prompts(parts, mixed):
    """Text alone, one image, two images, a video."""
    return [parts[0].render_prompt(sample) for sample in read_records(mixed)[:4]]


def gaps(parts, prompts) -> float:
    """Largest distance of the engine's log-probs from a padded transformers forward."""
    family, model, media, engine = parts
    groups = completed(engine, [asks(p, 4, i) for i, p in enumerate(prompts)], SAMPLING)
    inputs = [group_input(family, media, g) for g in groups]
    expected = padded_scores(
        model, inputs, Distribution(SAMPLING.temperature, forbidden=family.forbidden_ids)
    ).logprobs
    rows = [c.logprobs for g in groups for c in g.completions]
    assert len(rows) == 4 * len(prompts)
    return max(
        float(np.abs(row - want[: len(row)].detach().numpy()).max())
        for row, want in zip(rows, expected, strict=True)
    )


def parity(parts, prompts, tolerance: float = 1e-4, rounded: bool = False):
    family, model, media, engine = parts
    packed_model = PackedModel(
        model,
        ModelInputs(family, media),
        Distribution(SAMPLING.temperature, forbidden=family.forbidden_ids),
        budget=1000,
    )
    return check_parity(engine, packed_model, family, media, prompts, SAMPLING, tolerance, rounded)


def test_same_prompts_same_grids_same_logprobs(parts, prompts):
    assert parity(parts, prompts).prompts == 4
    assert gaps(parts, prompts) <= 1e-4


@pytest.mark.parametrize("cut", [{"top_p": 0.8}, {"top_k": 6, "min_p": 0.01}])
def test_support_of_a_cut_distribution_is_what_vllm_kept(tiny_model, prompts, tmp_path, cut):
    """Every log-prob equals a transformers forward over the kept ids; gaps are as without a cut."""
    family = load_family(str(tiny_model))
    media = MediaCache(family.prepare_media)
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        full_determinism=True,
        rollout={"max_prompt_length": 64, "max_response_length": 16, **cut},
        trainer={"threads": 1},
    )
    sampling = config.rollout.sampling
    distribution = Distribution.of(sampling, family.forbidden_ids)
    with closing(build_engine(config, family, media, tmp_path / "engine.log", None)) as engine:
        requests = [asks(p, 3, i) for i, p in enumerate(prompts)]
        groups = completed(engine, requests, sampling)
        (greedy,) = completed(engine, [asks(prompts[0], 1, 0)], sampling.greedy())
        packed = PackedModel(model, ModelInputs(family, media), distribution, budget=1000)
        parity = check_parity(engine, packed, family, media, prompts, sampling, 1e-4)
    assert parity.max_gap <= 1e-4
    inputs = [group_input(family, media, g) for g in groups]
    expected = padded_scores(model, inputs, distribution).logprobs.detach()
    rows = [c for g in groups for c in g.completions]
    for completion, wanted in zip(rows, expected, strict=True):
        own = wanted[: len(completion.logprobs)].numpy()
        np.testing.assert_allclose(completion.logprobs, own, atol=1e-4)
        assert len(completion.support.sizes) == len(completion.token_ids)
        assert not np.isin(completion.support.ids, family.forbidden_ids).any()
    sizes = np.concatenate([c.support.sizes for c in rows])
    assert sizes.min() >= 1
    assert sizes.max() == 6 if "top_k" in cut else sizes.max() > 6
    assert greedy.completions[0].support is None


def test_a_share_of_a_group_is_sampled_under_another_view(parts, prompts):
    """The engine's log-probs are those of a transformers forward of what each completion saw."""
    family, model, media, engine = parts
    views = ViewsConfig(view="noise", strength=0.5)
    rollout = {"n": 4, "views": views}
    plan = planner(Config(model={"path": "any"}, rollout=rollout), greedy=False)
    drawn = [OpenGroup(1, p, i, plan(1, p, i)) for i, p in enumerate(prompts)]
    asked = [(group, *missing) for group in drawn for missing in group.missing("group")]
    requests = [replace(request, sampling=SAMPLING) for *_, request in asked]
    sampled = complete(engine, requests)
    for (group, places, _), own in zip(asked, sampled, strict=True):
        for place, completion in zip(places, own.completions, strict=True):
            group.ended[place] = Finished(0, place, completion)
    groups = [group.group for group in drawn]
    plain = completed(engine, [asks(p, 4, i) for i, p in enumerate(prompts)], SAMPLING)
    scored = [ScoredGroup(g, (Reward(0.0),) * 4) for g in groups]

    def widest(shown) -> float:
        inputs = [group_input(family, media, s.group) for s in shown]
        scores = padded_scores(
            model, inputs, Distribution(SAMPLING.temperature, forbidden=family.forbidden_ids)
        ).logprobs
        rows = [c.logprobs for s in shown for c in s.group.completions]
        pairs = zip(rows, scores, strict=True)
        return max(float(np.abs(a - b[: len(a)].detach().numpy()).max()) for a, b in pairs)

    own = by_own_view(scored)
    assert [len(s.group.completions) for s in own] == [4, 2, 2, 2, 2, 2, 2]  # the first is text
    assert widest(own) <= 1e-4
    assert widest(scored) > 1e-3
    for group, other in zip(groups, plain, strict=True):
        for mine, theirs in zip(group.completions[:2], other.completions[:2], strict=True):
            assert mine.token_ids.tolist() == theirs.token_ids.tolist()


def test_in_step_after_fifty_updates(parts, prompts):
    _, model, _, engine = parts
    generator = torch.Generator().manual_seed(0)
    before = gaps(parts, prompts)
    for version in range(1, 51):
        shake(model, 1e-3, generator)
        engine.load(model.state_dict(), version)
    assert before <= 1e-4
    assert gaps(parts, prompts) <= 1e-4
    (group,) = completed(engine, [asks(prompts[0], 2, 0)], SAMPLING)
    assert {c.policy_version for c in group.completions} == {50}


def test_adapters_are_in_step_after_fifty_updates(parts, prompts, tiny_model):
    family, plain, media, engine = parts
    fresh = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    model = add_adapters(fresh, NewLoraConfig(rank=4), freeze_vision_tower=False)
    generator = torch.Generator().manual_seed(0)
    for version in range(101, 151):
        shake(model, 1e-3, generator)
        engine.load(model_weights(model), version)
    adapted = (family, model, media, engine)
    assert parity(adapted, prompts).max_gap <= 1e-4
    engine.load(plain.state_dict(), 151)
    with pytest.raises(ParityError, match="differ by up to"):  # the adapters make a difference
        parity(adapted, prompts)
    assert gaps(parts, prompts) <= 1e-4


@pytest.mark.slow
def test_two_workers_of_one_engine_share_its_weights(
    parts, prompts, tiny_model, tmp_path, monkeypatch
):
    """Tensor parallelism: each worker is a process, and on a CPU needs a core of its own."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two workers need two cores")
    first, second, *_ = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{first}|{second}")
    family, _, media, _ = parts
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        rollout={
            "max_prompt_length": 64,
            "max_response_length": 64,
            "engine": {"tensor_parallel_size": 2},
        },
        trainer={"threads": 1},
    )
    process = EngineProcess(
        build_vllm_engine, (config,), media.__getitem__, tmp_path / "engine.log", 1, 600
    )
    own = (family, model, media, Prefetching(process, media))
    try:
        for version in (1, 2):
            shake(model, 1e-2, torch.Generator().manual_seed(version))
            process.load(model.state_dict(), version)
            assert gaps(own, prompts) <= 1e-4
    finally:
        process.close()
    assert not list(Path("/dev/shm").glob("mmr1-weights-*"))


def test_a_medium_as_long_as_the_longest_prompt_fits_one_step_of_the_engine():
    own = gpu_settings(RolloutConfig(), 1)["max_num_batched_tokens"]
    for prompt in (own // 2, 2 * own):
        long = RolloutConfig(max_prompt_length=prompt, max_response_length=1024)
        expected = max(own, prompt + 1024)
        assert gpu_settings(long, 1)["max_num_batched_tokens"] == expected
        given = {"type": "vllm", "engine_kwargs": {"max_num_batched_tokens": own}}
        asked = long.model_copy(update={"engine": RolloutConfig(engine=given).engine})
        if expected > own:
            with pytest.raises(ValueError, match=f"set at least {expected}"):
                gpu_settings(asked, 1)
        else:
            assert "max_num_batched_tokens" not in gpu_settings(asked, 1)


@pytest.mark.parametrize(
    ("arguments", "exact"), [({}, True), ({"quantization": "fp8"}, False)], ids=str
)
def test_engine_on_a_gpu_has_logits_in_float32_unless_quantized(arguments, exact):
    rollout = RolloutConfig(engine={"type": "vllm", "engine_kwargs": arguments})
    expected = {"head_dtype": "float32"} if exact else None
    assert gpu_settings(rollout, 1).get("hf_overrides") == expected


@pytest.mark.parametrize(("batch", "expected"), [(1, 256), (320, 320), (5000, 1024)])
def test_engine_on_a_gpu_holds_sequences_of_a_batch(monkeypatch, batch, expected):
    own = {UsageContext.LLM_CLASS: 16384}, {UsageContext.LLM_CLASS: 1024}
    monkeypatch.setattr(EngineArgs, "get_batch_defaults", lambda size: own)
    assert gpu_settings(RolloutConfig(), batch)["max_num_seqs"] == expected
    given = RolloutConfig(engine={"type": "vllm", "engine_kwargs": {"max_num_seqs": 8}})
    assert "max_num_seqs" not in gpu_settings(given, batch)  # else it would be refused


def limited_engine(media, path: str, log: str):
    """An engine with an argument that mmr1 does not set; it notes what vLLM made of it."""
    from mmr1.rollout.vllm import VllmEngine

    arguments = {"engine_kwargs": {"max_num_seqs": 3}}
    config = RolloutConfig(max_prompt_length=64, max_response_length=64, engine=arguments)
    engine = VllmEngine(path, config, load_family(path), media, "float32", 0)
    scheduler = engine._llm.llm_engine.vllm_config.scheduler_config
    Path(log).write_text(str(scheduler.max_num_seqs))
    return engine


def test_further_arguments_reach_vllm(tiny_model, tmp_path):
    arguments = (str(tiny_model), str(tmp_path / "seen"))
    EngineProcess(limited_engine, arguments, {}.__getitem__, tmp_path / "log", 1).close()
    assert (tmp_path / "seen").read_text() == "3"


def long_engine(media, path: str):
    from mmr1.rollout.vllm import VllmEngine

    return VllmEngine(path, RolloutConfig(), load_family(path), media, "float32", 0)


def test_a_window_beyond_the_models_positions_is_refused(tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"ask for 4096 tokens, .*: lower them .*=2048") as refused:
        EngineProcess(long_engine, (str(tiny_model),), {}.__getitem__, tmp_path / "log", 1)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "block_size",
            3,
            r"rollout\.engine\.engine_kwargs\.block_size: mmr1 sets it; leave",
        ),
        ("max_num_seqs", "some", r"engine_kwargs\.max_num_seqs: input should be a valid integer"),
        ("kv_cache_dtype", "fp9", r"engine_kwargs\.kv_cache_dtype: input should be 'auto', .*fp8"),
        (
            "limit_mm_per_prompt",
            {"image": "x"},
            r"limit_mm_per_prompt: input should be a valid",
        ),
    ],
)
def test_further_arguments_that_mmr1_sets_or_of_another_type_are_refused(name, value, message):
    config = RolloutConfig(engine={"type": "vllm", "engine_kwargs": {name: value}})
    with pytest.raises(ValueError, match=message):
        further_arguments(config, {"block_size": 32})


def test_stages_of_a_pipeline_are_refused_on_a_cpu(tiny_model):
    config = RolloutConfig(engine={"engine_kwargs": {"pipeline_parallel_size": 2}})
    with pytest.raises(ValueError, match="CPU backend does not run the second stage"):
        cpu_settings(config, load_family(str(tiny_model)))


def test_each_argument_of_vllm_is_set_refused_or_passed():
    """A vLLM with a new one: look whether it changes what is sampled, and enter it."""
    known = [*OWNED, *REFUSED, *PASSED]
    assert len(known) == len(set(known))
    assert {field.name for field in fields(EngineArgs)} == set(known)


def test_each_way_to_verify_drafts_is_known():
    assert get_args(RejectionSampleMethod) == ("standard", "synthetic", "block")


N_GRAMS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 2,
}


def speculating_engine(media, path: str, log: str):
    """An engine that verifies n-grams of the context; it notes how many drafts it accepts."""
    from vllm.v1.sample import rejection_sampler

    from mmr1.rollout.vllm import VllmEngine

    config = RolloutConfig(
        max_prompt_length=192,
        max_response_length=64,
        engine={"engine_kwargs": {"speculative_config": N_GRAMS}},
    )
    engine = VllmEngine(path, config, load_family(path), media, "float32", 0)
    verify = rejection_sampler.rejection_sample

    def noted(*arguments, **options):
        kept = verify(*arguments, **options)
        with Path(log).open("a") as file:
            file.write(f"{int((kept >= 0).sum()) - len(kept)}\n")
        return kept

    rejection_sampler.rejection_sample = noted
    return engine


@pytest.fixture(scope="module")
def speculating(parts, prompts, tiny_model, tmp_path_factory):
    """Such an engine, of a model that repeats itself, and how many drafts were accepted so far."""
    folder = tmp_path_factory.mktemp("speculating")
    family, _, media, _ = parts
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    model.lm_head.weight.data *= 30
    process = EngineProcess(
        speculating_engine,
        (str(tiny_model), str(folder / "drafts")),
        media.__getitem__,
        folder / "log",
        1,
    )
    process.load(model.state_dict(), 1)

    def accepted() -> int:
        return sum(map(int, (folder / "drafts").read_text().split()))

    yield (family, model, media, Prefetching(process, media)), accepted
    process.close()


def test_drafts_change_no_log_prob_and_no_greedy_token(speculating, prompts):
    """Pictures and a video in the prompts, also with placeholders that may not be sampled."""
    parts, accepted = speculating
    family, model, media, engine = parts
    assert parity(parts, prompts).max_gap <= 1e-4
    assert gaps(parts, prompts) <= 1e-4
    before = accepted()
    long = SamplingConfig(max_tokens=40).greedy()
    groups = completed(engine, [asks(p, 1, 0) for p in prompts], long)
    assert accepted() - before > 10
    inputs = [group_input(family, media, g) for g in groups]
    scores = padded_scores(model, inputs, Distribution(forbidden=family.forbidden_ids))
    for group, row in zip(groups, scores.logprobs.detach(), strict=True):
        (completion,) = group.completions
        got = torch.tensor(completion.logprobs)
        assert (got - row[: len(got)]).abs().max() < 1e-4
        assert set(completion.token_ids.tolist()).isdisjoint(family.forbidden_ids)
    plain = plain_greedy(model, family, prompts[0], 40)
    assert groups[0].completions[0].token_ids.tolist() == plain


def plain_greedy(model, family, prompt: Prompt, tokens: int) -> list[int]:
    """By transformers' forward alone, for a prompt without media."""
    ids = list(prompt.token_ids)
    for _ in range(tokens):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        logits[list(family.forbidden_ids)] = -torch.inf
        ids.append(int(logits.argmax()))
    return ids[len(prompt.token_ids) :]


def test_drafts_change_no_frequency(speculating, prompts):
    """Of sequences, against the product of their probabilities: Pearson's test."""
    parts, accepted = speculating
    engine = parts[-1]
    start = plain_greedy(parts[1], parts[0], prompts[0], 20)  # a context to draft from
    prompt = replace(prompts[0], token_ids=(*prompts[0].token_ids, *start))
    before, number = accepted(), 2000
    sampling = SamplingConfig(max_tokens=4, temperature=0.9)
    (group,) = completed(engine, [asks(prompt, number, 0)], sampling)
    assert accepted() - before > 500
    seen = Counter(tuple(c.token_ids.tolist()) for c in group.completions)
    expected = {
        tuple(c.token_ids.tolist()): number * float(np.exp(c.logprobs.sum(dtype=np.float64)))
        for c in group.completions
    }
    often = [tokens for tokens, count in expected.items() if count >= 5]
    assert len(often) > 5
    cells = [(seen[tokens], expected[tokens]) for tokens in often]
    cells.append((number - sum(c for c, _ in cells), number - sum(e for _, e in cells)))
    distance = sum((count - wanted) ** 2 / wanted for count, wanted in cells)
    assert chi2.sf(distance, len(cells) - 1) > 0.001


@pytest.mark.parametrize(
    "engine",
    [
        {"dtype": "bfloat16"},
        pytest.param({"dtype": "float16"}, marks=pytest.mark.slow),
        pytest.param({"engine_kwargs": {"kv_cache_dtype": "fp8"}}, marks=pytest.mark.slow),
    ],
    ids=["bfloat16", "float16", "keys and values in FP8"],
)
def test_an_engine_that_rounds_beside_a_float32_policy(
    engine, parts, prompts, tiny_model, tmp_path
):
    family, _, media, _ = parts
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        rollout={
            "max_prompt_length": 64,
            "max_response_length": 64,
            "engine": engine,
        },
        trainer={"threads": 1},
    )
    own = (family, model, media, build_engine(config, family, media, tmp_path / "log", None))
    try:
        for version in (1, 2):
            actual = parity(own, prompts, 0.1, rounded=True)
            assert actual.mean_gap > 1e-4  # rounded; parity refuses more than 0.1
            shake(model, 0.05, torch.Generator().manual_seed(version))
            with pytest.raises(ParityError, match=r"differ on average .* nats"):
                parity(own, prompts, 0.1, rounded=True)
            own[-1].load(model.state_dict(), version)
        assert parity(own, prompts, 0.1, rounded=True).mean_gap > 1e-4
    finally:
        own[-1].close()


def engine_that_may_not_cast(media, config: Config, marker: str):
    """vLLM gets float32 pixels while a file is there, and casts them itself."""
    from mmr1.rollout import vllm

    own = vllm._kwargs

    def kwargs(inputs, dtype):
        seen = {value.values.dtype for value in inputs.values() if value.values.ndim == 2}
        seen -= {torch.int64}  # grids
        casts = not Path(marker).exists()
        assert seen <= {dtype if casts else torch.float32}, seen
        return own(inputs, dtype if casts else torch.float32)

    vllm._kwargs = kwargs
    return build_vllm_engine(media, config)


def test_pixels_that_are_sent_in_the_engines_type_give_the_same_bits(
    parts, prompts, tiny_model, tmp_path
):
    """As float32 pixels, which vLLM casts: images, and a video."""
    _, model, media, _ = parts
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        full_determinism=True,
        rollout={
            "max_prompt_length": 64,
            "max_response_length": 64,
            "engine": {"dtype": "bfloat16"},
        },
        trainer={"threads": 1},
    )
    marker = tmp_path / "float32"
    process = EngineProcess(
        engine_that_may_not_cast,
        (config, str(marker)),
        media.__getitem__,
        tmp_path / "log",
        1,
        600,
    )
    engine = Prefetching(process, media, together=True)

    def rows(pixels: torch.dtype | None) -> list[tuple[list[int], list[float]]]:
        process._pixels = pixels
        engine.load(model.state_dict(), 1)  # drops keys, values and features
        groups = completed(engine, [asks(p, 2, i) for i, p in enumerate(prompts)], SAMPLING)
        completions = [c for group in groups for c in group.completions]
        return [(c.token_ids.tolist(), c.logprobs.tolist()) for c in completions]

    try:
        here = rows(torch.bfloat16)
        marker.touch()
        inside = rows(None)
        assert here == inside
    finally:
        process.close()


def forgetful_engine(media, path: str, forgets: str):
    """An engine that keeps what it must drop when new weights come."""
    from mmr1.rollout.vllm import VllmEngine

    config = RolloutConfig(max_prompt_length=192, max_response_length=64)
    frozen = forgets == "vision features"  # it takes the tower to be frozen, and it is not
    engine = VllmEngine(path, config, load_family(path), media, "float32", 0, vision_frozen=frozen)
    if forgets == "keys and values":
        engine._llm.reset_prefix_cache = lambda **_: True  # as if it had
    if forgets == "keys and values, and says so":
        engine._llm.reset_prefix_cache = lambda **_: False
    return engine


def test_a_prefix_cache_that_cannot_be_dropped_is_an_error(tiny_model, tmp_path):
    says_so = (str(tiny_model), "keys and values, and says so")
    process = EngineProcess(forgetful_engine, says_so, {}.__getitem__, tmp_path / "log", 1)
    try:
        model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
        with pytest.raises(EngineError, match="did not drop its prefix cache"):
            process.load(model.state_dict(), 1)
    finally:
        process.close()


@pytest.mark.parametrize("forgets", ["nothing", "vision features", "keys and values"])
def test_a_cache_that_outlives_its_weights_is_seen(forgets, parts, tiny_model, tmp_path):
    family, _, media, _ = parts
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    Image.effect_noise((168, 168), 60).convert("RGB").save(tmp_path / "noise.png")
    content = (MediaRef("image", tmp_path / "noise.png"), TextPart("What is it? " * 8))
    prompts = [family.render_prompt(Sample("long", (Message("user", content),)))]
    process = EngineProcess(
        forgetful_engine, (str(tiny_model), forgets), media.__getitem__, tmp_path / "log", 1
    )
    own = (family, model, media, Prefetching(process, media))
    try:
        assert gaps(own, prompts) <= 1e-4
        shake(model, 0.02, torch.Generator().manual_seed(0))
        process.load(model.state_dict(), 1)
        if forgets == "nothing":
            assert parity(own, prompts).max_gap <= 1e-4
        else:
            with pytest.raises(ParityError, match=r"differ by up to"):
                parity(own, prompts)
    finally:
        process.close()


def test_stale_weights_fail_the_parity_check(parts, prompts):
    _, model, _, engine = parts
    with torch.no_grad():
        model.lm_head.weight += 0.01 * torch.randn(
            model.lm_head.weight.shape, generator=torch.Generator().manual_seed(1)
        )
    with pytest.raises(ParityError, match=r"differ by up to .* nats"):
        parity(parts, prompts)
    engine.load(model.state_dict(), 51)
    assert parity(parts, prompts).max_gap <= 1e-4


def test_same_seed_same_tokens_and_no_placeholders(parts, prompts):
    family, _, _, engine = parts
    runs = [completed(engine, [asks(p, 4, 7) for p in prompts], SAMPLING) for _ in range(2)]
    tokens = [[c.token_ids.tolist() for g in run for c in g.completions] for run in runs]
    assert tokens[0] == tokens[1]
    assert {t for row in tokens[0] for t in row}.isdisjoint(family.forbidden_ids)
    assert len({tuple(row) for row in tokens[0][:4]}) == 4


def test_min_p_and_stop_texts(parts, prompts):
    family, _, _, engine = parts
    free = SAMPLING.changed({"min_p": 0.5})
    for seed in range(20):
        request = [asks(prompts[0], 2, seed)]
        (whole,) = completed(engine, request, free)
        text = whole.completions[0].text
        stop = text[len(text) // 3 : len(text) // 2]
        plain = family.tokenizer.decode(whole.completions[0].token_ids, skip_special_tokens=True)
        if stop in plain and stop and "\ufffd" not in stop:  # for any part of a character
            break
    (actual,) = completed(engine, request, free.changed({"stop": (stop,)}))
    first, unstopped = (g.completions[0].token_ids.tolist() for g in (actual, whole))
    assert len(first) < len(unstopped)
    assert first == unstopped[: len(first)]
    assert stop in family.tokenizer.decode(first)
    assert stop not in family.tokenizer.decode(first[:-1])
    assert not actual.completions[0].truncated


@pytest.mark.slow
def test_killed_while_it_generates_the_step_ends_with_the_same_completions(parts, prompts):
    _, model, _, engine = parts
    engine.load(model.state_dict(), 60)
    requests = [asks(p, 64, i) for i, p in enumerate(prompts)]
    sampling = SAMPLING.changed({"max_tokens": 64})
    undisturbed = completed(engine, requests, sampling)
    before = engine.engine._process.pid
    threading.Timer(0.2, os.kill, (before, signal.SIGKILL)).start()
    begin = time.monotonic()
    actual = completed(engine, requests, sampling)
    print(f"detected, replaced and asked again within {time.monotonic() - begin:.1f} s")
    assert engine.engine.restarted == 1
    assert not psutil.pid_exists(before)
    for one, other in zip(actual, undisturbed, strict=True):
        for a, b in zip(one.completions, other.completions, strict=True):
            assert a.token_ids.tolist() == b.token_ids.tolist()
            assert a.policy_version == 60
    assert gaps(parts, prompts) <= 1e-4


def prefill_rows(prompts: list[tuple[int, ...]], n: int) -> int:
    """Rows of a plain reading of prefix caching: whole blocks that came before are not computed.

    A prompt's last token always is, for its logits are wanted.
    """
    seen: set[tuple[int, ...]] = set()
    rows = 0
    for prompt in prompts:
        for _ in range(n):
            ends = range(BLOCK, len(prompt) + 1, BLOCK)
            hits = 0
            for end in ends:
                if prompt[:end] not in seen or end >= len(prompt):
                    break
                hits = end
            seen.update(prompt[:end] for end in ends)
            rows += len(prompt) - hits
    return rows


@pytest.mark.parametrize("frozen", [False, True], ids=["tower learns", "tower frozen"])
def test_nothing_is_encoded_twice(frozen, parts, tmp_path, monkeypatch):
    """Two epochs of 16 prompts on 4 images, 8 completions each, new weights in between.

    A picture is sent to the engine's process once in an epoch, and counts once while it is under
    way, however many completions are of it.
    """
    family, model, _, _ = parts
    path, log = model.config._name_or_path, tmp_path / "rows"
    refs = []
    for name in range(4):
        noise = np.random.default_rng(name).integers(0, 255, (168, 168, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{name}.png")
        refs.append(MediaRef("image", tmp_path / f"{name}.png"))
    questions = ["How many?", "What colour?", "Which is larger?", "Is there a circle?"]
    prompts = [
        family.render_prompt(Sample(f"{i}{q}", (Message("user", (ref, TextPart(q))),)))
        for q in questions
        for i, ref in enumerate(refs)
    ]
    media = MediaCache(family.prepare_media)
    process = EngineProcess(
        counting_engine, (path, str(log), frozen), media.__getitem__, tmp_path / "log", 1
    )
    engine = Prefetching(process, media)
    image_rows = 36  # 168 / 28 squared
    sent, truncate = list[int](), os.ftruncate

    def noted(descriptor: int, size: int) -> None:
        sent.append(size)
        truncate(descriptor, size)

    monkeypatch.setattr("mmr1.rollout.media_pipe.os.ftruncate", noted)
    try:
        for epoch in range(2):
            engine.load(model.state_dict(), epoch)
            log.write_text("")
            requests = [asks(p, 8, i) for i, p in enumerate(prompts)]
            groups = completed(engine, requests, SAMPLING)
            rows = counted(log)
            patches = [media[ref].patches for ref in refs]
            own, sent[:] = sum(sent), []
            assert own == sum((p.nbytes // 64 + 1) * 64 for p in patches)
            assert rows["held"] == 4 * image_rows
            expected = 0 if frozen and epoch else 4 * image_rows
            assert rows["vision"] == expected, (epoch, rows)
            decoded = sum(len(c.token_ids) - 1 for g in groups for c in g.completions)
            in_order = [identity(family, p, media) for i in range(4) for p in prompts[i::4]]
            assert rows["language"] - decoded == prefill_rows(in_order, 8)
    finally:
        engine.close()
    assert media.processor_calls == 4


def identity(family, prompt: Prompt, media: MediaCache) -> tuple[int, ...]:
    """The expanded prompt with every vision token named after its image."""
    prepared = [media[m] for m in prompt.media]
    ids = family.expand_placeholders(prompt.token_ids, prepared)
    (image,) = prepared
    return tuple(int(image.digest[:12], 16) if i == family.image_id else i for i in ids)


def _refuse(media) -> None:
    raise ValueError("no such engine")


def _crash(media) -> None:
    print("about to crash", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_refusal_keeps_its_message(tmp_path: Path):
    with pytest.raises(ValueError, match="no such engine"):
        EngineProcess(_refuse, (), {}.__getitem__, tmp_path / "engine.log")


def test_a_death_is_reported_with_the_end_of_the_log(tmp_path: Path):
    with pytest.raises(EngineError, match=r"died \(exit code -9\)[\s\S]*about to crash"):
        EngineProcess(_crash, (), {}.__getitem__, tmp_path / "engine.log")


def test_encoded_media_of_both_model_runners():
    """Each keeps them its own way, and a text model's second runner keeps none."""
    from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache

    from mmr1.rollout.vllm_transfer import encoder_outputs

    second = EncoderCache()
    second.encoder_outputs["a"] = torch.ones(1)
    first = {"a": torch.ones(1)}
    for cache in (first, second):
        kept = dict(encoder_outputs(cache))
        encoder_outputs(cache).clear()
        encoder_outputs(cache).update(kept)
        assert encoder_outputs(cache)["a"].item() == 1
    assert second.encoder_outputs.keys() == {"a"}
    assert encoder_outputs(None) == {}


def test_flat_log_probs_have_the_bits_of_vllms_dictionaries():
    """Two steps of one token, and one that accepts a draft, as vLLM hands them on."""
    from vllm import SamplingParams
    from vllm.v1.engine.logprobs import LogprobsProcessor
    from vllm.v1.outputs import LogprobsLists

    values = torch.randn(4, 1, generator=torch.Generator().manual_seed(0)).log_softmax(0).numpy()
    tokens, ranks = np.array([[5], [9], [5], [2]]), np.array([1, 3, 1, 2])
    read = []
    for flat in (False, True):
        request = SimpleNamespace(sampling_params=SamplingParams(logprobs=0, flat_logprobs=flat))
        processor = LogprobsProcessor.from_new_request(None, request)
        for step in (slice(0, 1), slice(1, 2), slice(2, 4)):
            sampled = LogprobsLists(tokens[step], values[step], ranks[step])
            processor._update_sample_logprobs(sampled)
        read.append(processor.logprobs)
    dictionaries, flat = read
    rows = zip(dictionaries, tokens[:, 0], strict=True)
    assert flat.logprobs == [row[token].logprob for row, token in rows]
    assert np.array(flat.logprobs, np.float32).tolist() == values[:, 0].tolist()
