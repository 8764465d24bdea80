"""Ranks and engines that share GPUs: the order in which they take turns."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from mmr1.config import Config
from mmr1.config.file import config_from
from mmr1.rollout import build_vllm
from mmr1.rollout.vllm_settings import Transfer
from mmr1.trainer.distributed.all_ranks import AllRanks, LiveWeights
from mmr1.trainer.distributed.cluster import config_for_workers
from mmr1.trainer.distributed.colocation import Colocation
from mmr1.trainer.distributed.engine_actor import build_engine_with_own_weights
from mmr1.trainer.distributed.ray_policy import RayPolicy
from mmr1.trainer.distributed.weight_source import _beginning
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.models.training_models import TrainingModels
from mmr1.vision.build import family_of, media_cache

WAKING = ["make room", "send", "make more room"]


class Recorder:
    """Engines and ranks that write down what is asked of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = ""
        self.colocation = Colocation(
            self._asked,
            lambda: self._noted("send"),
            lambda sent: self._noted("make more room" if sent else "make room"),
            lambda: self.calls.append("take back"),
        )

    def _asked(self, method: Callable[..., None], *args: str) -> None:
        self._noted(" ".join([method.__name__, *args]))

    def _noted(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fails:
            self.fails = ""
            raise RuntimeError("lost")

    def taken(self) -> list[str]:
        calls, self.calls[:] = list(self.calls), []
        return calls


def test_the_order_of_a_step():
    recorder = Recorder()
    recorder.colocation.learn()
    assert recorder.taken() == []  # the engines rest already
    recorder.colocation.sample()
    assert recorder.taken() == WAKING  # to weights of the ranks, the first time too
    recorder.colocation.sample()
    assert recorder.taken() == []
    recorder.colocation.learn()
    recorder.colocation.learn()
    assert recorder.taken() == ["rest", "take back"]
    recorder.colocation.sample()
    assert recorder.taken() == WAKING


@pytest.mark.parametrize("what", ["send", "make more room"])
def test_engines_without_weights_are_not_taken_for_awake(what):
    """The ranks have all that they send when it is tried again, or when they compute."""
    recorder = Recorder()
    recorder.fails = what
    with pytest.raises(RuntimeError, match="lost"):
        recorder.colocation.sample()
    recorder.taken()
    recorder.colocation.sample()
    assert recorder.taken() == ["take back", *WAKING]
    recorder.colocation.learn()
    recorder.fails = what
    with pytest.raises(RuntimeError, match="lost"):
        recorder.colocation.sample()
    recorder.taken()
    recorder.colocation.learn()
    assert recorder.taken() == ["take back"]  # the engines rest, or are lost


COLOCATED = {"rollout": {"engine": {"colocate": True}}, "resources": {"ranks": 2}}


@pytest.mark.parametrize(
    ("override", "refusal"),
    [
        (
            "resources.engines=3",
            r"resources\.engines=3, .*ranks=2: colocated engines have",
        ),
        (
            "rollout.engine.tensor_parallel_size=4",
            r"ranks=2, .*tensor_parallel_size=4, .*: an engine shares the GPUs of so many ranks",
        ),
        (
            "rollout.engine.engine_kwargs.pipeline_parallel_size=3",
            r"engine_kwargs: an engine shares .* ranks, those of all its pipeline stages",
        ),
        ("rollout.max_off_policy_steps=1", "max_off_policy_steps=1: engines sleep while"),
    ],
)
def test_what_cannot_be_colocated_is_refused(override, refusal):
    with pytest.raises(ValueError, match=refusal):
        config_from({"model": {"path": "m"}, **COLOCATED}, [override])


@pytest.mark.parametrize(
    ("engine", "said"),
    [("hf", "type 'hf' has no 'offload_trainer'"), ("vllm", "set colocate=true, or leave")],
)
def test_an_engine_with_gpus_of_its_own_is_not_told_how_to_share_them(engine, said):
    tree = {"model": {"path": "m"}, "rollout": {"engine": {"type": engine}}}
    with pytest.raises(ValueError, match=said):
        config_from(tree, ["rollout.engine.offload_trainer=true"])


@pytest.mark.parametrize("copy", [False, True])
def test_colocated_ranks_send_what_an_engine_that_keeps_its_frozen_tower_needs(copy):
    ranks: AllRanks[TrainingModels] = AllRanks([], True, lambda prompt: 0.0, 1, 60, 60)
    ranks.colocation = Recorder().colocation
    policy = RayPolicy(ranks.part(lambda models: models.policy))
    weights = policy.weights(copy)  # nothing is sampled ahead: no copy
    assert isinstance(weights, LiveWeights)
    assert weights.method.method is LocalPolicy.engine_weights


@pytest.mark.parametrize(
    ("model", "beginnings"),
    [
        ({"freeze_vision_tower": True}, ("model.visual.",)),
        ({"freeze_vision_tower": True, "lora": {"rank": 2}}, ("model.visual.",)),
        ({}, ()),
        ({"lora": {"rank": 2}}, ()),
        ({"lr_of_parts": {"visual.blocks": 0}}, ()),  # the merger learns, and all of it is sent
        ({"lr_of_parts": {"visual": 0}}, ("model.visual.",)),
    ],
)
def test_a_colocated_engine_keeps_what_no_transfer_brings(
    tiny_model, monkeypatch, model, beginnings
):
    made = []

    def build(media: object, config: Config, transfer: Transfer) -> SimpleNamespace:
        made.append(transfer)
        return SimpleNamespace(load=None, close=None)

    monkeypatch.setattr(build_vllm, "build_vllm_engine", build)
    parts = {"lr_of_parts": model.pop("lr_of_parts", {})}
    config = Config(model={"path": str(tiny_model), **model}, optimizer=parts)
    family = family_of(config)
    media = media_cache(family, config)
    for colocated in (True, False):
        build_engine_with_own_weights(config, family, media, colocated)
    # Alone it does not sleep.
    assert made == [Transfer(True, True, beginnings), Transfer()]


def test_beginnings_of_names_are_as_short_as_they_can_be():
    names = ["a.tower.x.weight", "a.tower.y.weight", "a.newline"]
    others = ["a.text.x.weight", "a.tower_of_text.weight", "head"]
    found = {_beginning(name, others) for name in names}
    assert found == {"a.tower.", "a.newline"}


def test_a_colocated_run_is_one_on_ray_that_shares_memory():
    alone = Config(model={"path": "m"}, rollout={"engine": {"colocate": True}})
    assert alone.distributed
    assert alone.gpu_memory_utilization == 0.5


def test_engines_of_an_evaluation_have_the_whole_memory_of_their_gpus():
    """No rank shares them, whatever the training run that the configuration is of did."""
    shared = Config(model={"path": "a"}, **COLOCATED)
    assert config_for_workers(shared, 2, 2).gpu_memory_utilization == 0.5
    for ranks, engines in ((0, 2), (2, 0)):
        alone = config_for_workers(shared, ranks, engines)
        assert alone.gpu_memory_utilization == 0.9
        assert not alone.rollout.colocated
