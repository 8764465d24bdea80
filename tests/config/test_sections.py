"""Sections in Python: how they are changed, and what is derived from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from pydantic import ValidationError

from mmr1.algorithms import loss
from mmr1.config import (
    AlgorithmConfig,
    Config,
    KlLoss,
    NewLoraConfig,
    ResourcesConfig,
    SamplingConfig,
    StoredLoraConfig,
    TrainerConfig,
    read_rewards,
)
from mmr1.config.checks import check_own_parts
from mmr1.config.explain import key_paths
from mmr1.config.file import config_from
from mmr1.config.rewards import weights_of
from mmr1.rewards.kind import OwnReward
from mmr1.section import Section


def config(**sections) -> Config:
    return Config(model={"path": "m"}, **sections)


def test_a_changed_copy_is_checked():
    before = config()
    after = before.changed({"trainer.max_steps": 3, "model.lora.rank": 4, "seed": 7})
    assert (after.trainer.steps, after.seed) == (3, 7)
    assert after.model.lora == NewLoraConfig(rank=4)
    assert before == config()
    for wrong in ({"trainer.max_step": 3}, {"rollout.n": 0}, {"algorithm.kl.estimator": "k2"}):
        with pytest.raises(ValidationError):
            before.changed(wrong)


def test_a_changed_copy_replaces_what_a_key_without_dots_names():
    before = config(rewards={"format": 0.5, "math": 1.0})
    assert list(before.changed(rewards={"exact": 1.0}).rewards) == ["exact"]
    within = before.changed({"rewards.math.weight": 2.0}).rewards
    assert weights_of(within) == {"format": 0.5, "math": 2.0}
    assert before.algorithm.changed({"kl.coef": 0.1}).kl == KlLoss(coef=0.1)


def test_a_changed_value_may_make_another_variant():
    before = config()
    own = before.changed({"rewards.math.type": "r.py:f"}).rewards["math"]
    assert isinstance(own, OwnReward)
    dapo = config(algorithm={"name": "dapo"}).changed({"algorithm.loss.type": "gspo"}).algorithm
    assert dapo.loss == loss.parts["gspo"].section()
    engine = before.changed({"rollout.engine.type": "hf"}).rollout.engine
    assert engine.type == "hf"


def test_a_changed_name_lays_its_preset_down():
    dapo = config(algorithm={"name": "dapo", "kl": {"coef": 0.1}})
    gspo = dapo.changed({"algorithm.name": "gspo"}).algorithm
    expected = (loss.parts["gspo"].section(), None, KlLoss(coef=0.1))
    assert (gspo.loss, gspo.filter_groups, gspo.kl) == expected


def test_a_changed_copy_is_for_the_same_command_with_its_credentials(monkeypatch):
    monkeypatch.setenv("TOKEN", "s")
    values = {
        "model": {"path": "m"},
        "data": {"chat_template_kwargs": {"token": "${oc.env:TOKEN}"}},
    }
    copy = config_from(values, command="sft").changed({"seed": 3})
    assert copy.command == "sft"
    assert list(copy.references.values()) == ["${oc.env:TOKEN}"]
    assert copy.for_command("eval").command == "eval"
    assert copy.command == "sft"


def test_type_and_name_tell_which_reward_it_is():
    rewards = read_rewards({"math": 0, "near": {"type": "iou"}, "r.py:f": 1, "own": "package.f"})
    assert [reward.type for reward in rewards.values()] == ["math", "iou", "r.py:f", "package.f"]
    assert [isinstance(reward, OwnReward) for reward in rewards.values()] == [0, 0, 1, 1]


def test_stored_adapters_become_new_ones_and_keep_what_both_have():
    stored = Config(model={"path": "m", "lora": {"path": "a", "merge": False}}).model.lora
    assert isinstance(stored, StoredLoraConfig)
    assert stored.as_new() == NewLoraConfig(merge=False)


def test_engines_and_their_memory():
    alone, on_ray = config(), config(resources={"engines": 2})
    assert (alone.gpu_memory_utilization, on_ray.gpu_memory_utilization) == (0.5, 0.9)
    shared = config(rollout={"engine": {"colocate": True}}, resources={"ranks": 3})
    assert (shared.distributed, shared.engines, shared.gpu_memory_utilization) == (True, 3, 0.5)
    assert alone.for_command("eval").gpu_memory_utilization == 0.9, "nothing learns beside it"
    chosen = config(rollout={"engine": {"gpu_memory_utilization": 0.3}})
    assert chosen.gpu_memory_utilization == 0.3


def test_data_types_of_trainer_and_engine():
    both = config(rollout={"engine": {"dtype": "float32"}})
    assert both.dtypes == {"model.dtype": "bfloat16", "rollout.engine.dtype": "float32"}
    assert (both.rollout_dtype, both.resolved_rollout_is) == ("float32", "token")
    alike = config(rollout={"engine": "hf"})
    assert (alike.rollout_dtype, alike.resolved_rollout_is) == ("bfloat16", "none")
    assert alike.parity_tolerance == 0.1


def test_sampling_has_the_limits_of_the_rollout():
    sampling = config(rollout={"max_response_length": 9, "temperature": 0.7, "top_k": 5}).rollout
    assert sampling.sampling == SamplingConfig(temperature=0.7, top_k=5, max_tokens=9)
    assert sampling.sampling.greedy() == SamplingConfig(temperature=0.0, max_tokens=9)


def test_the_columns_of_rows_that_have_other_names():
    named = config(data={"format": {"prompt_key": "q", "answer_key": "answer"}}).data
    assert (named.columns, named.format_name) == ({"problem": "q"}, "easyr1")
    assert config(data={"format": "verl"}).data.format_name == "verl"


def test_when_a_run_validates():
    trainer = TrainerConfig(max_steps=7, validation={"data": "x", "steps": 3})
    assert [step for step in range(1, 8) if trainer.validates(step)] == [3, 6, 7]
    assert trainer.next_validation(4) == 6
    last = TrainerConfig(max_steps=7, validation={"data": "x"})
    assert not any(last.validates(step) for step in range(1, 8))


def test_ranks_are_divided():
    with pytest.raises(ValidationError, match="fsdp_size=2 does not divide ranks=3"):
        ResourcesConfig(ranks=3, fsdp_size=2)
    with pytest.raises(ValidationError, match="context_parallel_size=2 does not divide ranks=3"):
        ResourcesConfig(ranks=3, context_parallel_size=2)


def test_the_reference_is_the_kls_or_the_teacher():
    assert AlgorithmConfig().reference is None
    kl = {"coef": 0.1, "reference": {"type": "server", "url": "http://a"}}
    assert AlgorithmConfig(kl=kl).reference_is_served
    taught = AlgorithmConfig(name="on_policy_distillation", advantage={"teacher": {"path": "t"}})
    assert taught.reference.path == "t"


@pytest.mark.parametrize("key", ["model.path", "algorithm.kl.reference.mixup_alpha", "seed"])
def test_every_key_has_a_path(key):
    assert key in dict(key_paths())


def test_every_key_has_a_description():
    undescribed = sorted(
        f"{section.__name__}.{name}"
        for section in _sections(Config)
        for name, field in section.model_fields.items()
        if name != "type" and not field.description and not _is_plain_section(field)
    )
    assert undescribed == []


def _is_plain_section(field) -> bool:
    """Its class says what it is."""
    return isinstance(field.annotation, type) and bool(field.annotation.__doc__)


def _sections(section):
    from mmr1.section import shapes

    yield section
    for shape in shapes(section).values():
        for inner in shape.classes:
            yield from _sections(inner)


def _sections(section: type[Section] = Section) -> Iterator[type[Section]]:
    for below in section.__subclasses__():
        yield below
        yield from _sections(below)


def _written(annotation: Any, number: float) -> Any:
    """The number in the place that an annotation has for one; None where it has none."""
    if annotation is float:
        return number
    inner = [_written(each, number) for each in get_args(annotation)]
    found = next((each for each in inner if each is not None), None)
    if found is None or get_origin(annotation) is None:
        return None
    if get_origin(annotation) is tuple:
        return [0.1 if each is None or i else each for i, each in enumerate(inner)]
    return {"x": found} if get_origin(annotation) is dict else found


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_no_setting_is_infinite_or_no_number(number):
    seen = 0
    for section in set(_sections()):
        for key, field in section.model_fields.items():
            if (value := _written(field.annotation, number)) is None:
                continue
            seen += 1
            with pytest.raises(ValidationError) as refused:
                section.model_validate({key: value})
            errors = [error for error in refused.value.errors() if error["loc"][:1] == (key,)]
            assert errors, f"{section.__name__}.{key}={value}"
    assert seen > 40


def test_a_setting_that_a_declared_part_lacks_is_named(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from mmr1.engines import engine\n"
        "@engine('own')\n"
        "def own(setting, url: str = ''):\n"
        "    'An engine.\\n\\nArgs:\\n    url: Its address.'\n"
    )
    written = {"model": {"path": "m"}, "rollout": {"engine": {"type": f"{file}:own", "ulr": "a"}}}
    with pytest.raises(ValueError, match=r"it has no setting 'ulr' \(did you mean 'url'\?\)"):
        check_own_parts(config_from(written))
