"""What is sent by vLLM's own transfer of weights, and when; the transfer itself needs a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

pytest.importorskip("vllm", reason="vLLM is not installed")

from mmr1.config import Config, NewLoraConfig
from mmr1.rollout import build_vllm
from mmr1.rollout.carriers import SharedMemoryCarrier, TransferCarrier
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.engines import EngineSetting
from mmr1.rollout.transfer import SyncClient, WeightSource
from mmr1.rollout.vllm_settings import Transfer, transfer_settings
from mmr1.rollout.weight_layout import layout_for
from mmr1.trainer.distributed.weight_source import RankSource
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.lora import add_adapters
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache

pytestmark = pytest.mark.vllm


def sent(config: Config, model: Any) -> dict[str, torch.Tensor]:
    """What ranks send of a model, as its description announces it."""
    family = load_family(config.model.path)
    inputs = ModelInputs(family, MediaCache(family.prepare_media))
    packed = PackedModel(
        model, inputs, Distribution(forbidden=inputs.family.forbidden_ids), budget=1000
    )
    source = RankSource(packed.engine_weights, layout_for(config))
    source.begin()
    weights = dict(source)
    announced = {m.name: (m.dtype, m.shape) for m in source.metadata()}
    assert announced == {name: (w.dtype, tuple(w.shape)) for name, w in weights.items()}
    return weights


@pytest.fixture
def config(tiny_model) -> Config:
    return Config(model={"path": str(tiny_model), "dtype": "float32"})


def test_ranks_send_each_weight_as_announced(config, tiny_model):
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    weights, own = sent(config, model), model.state_dict()
    assert weights.keys() == own.keys()
    assert all(torch.equal(weights[name], own[name]) for name in own)


def test_a_frozen_tower_is_not_sent(config, tiny_model):
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    language = {n for n in model.state_dict() if not n.startswith("model.visual.")}
    adapted = add_adapters(model, NewLoraConfig(rank=4), freeze_vision_tower=True)
    assert sent(config, adapted).keys() == language


def test_a_carrier_sends_the_same_again_to_a_new_engine(config, tiny_model):
    log: list[Any] = []

    class Sender:
        source: Any = None

        def __init__(self, client: SyncClient, source: WeightSource) -> None:
            self._client = client
            client.init_weight_transfer_engine({})

        def send_weights(self) -> None:
            log.append({name: float(weight) for name, weight in self.source})
            self._client.finish_weight_update()

        def shutdown(self) -> None:
            log.append("shutdown")

    def ask(method: str, *args: Any) -> None:
        log.append((method, *args))

    carrier = TransferCarrier(Sender, layout_for(config), "cpu")
    carrier.bring(ask, {"lm_head.weight": torch.tensor(2.0)}, 5)
    first = list(log)
    assert first == [
        ("init_weight_transfer_engine", {}),
        {"lm_head.weight": 2.0},
        ("finish_weight_update", 5),
    ]
    carrier.bring_again(ask)
    assert log == [*first, "shutdown", *first]


def test_beside_a_trainer_on_its_gpu_weights_do_not_leave_it(tiny_model, tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def started(*args: Any, **keys: Any) -> SimpleNamespace:
        built.append((args, keys))
        return SimpleNamespace(settings="", load=None, close=None)

    monkeypatch.setattr(build_vllm, "EngineProcess", started)

    def carried(**sections: object) -> tuple[Any, Any]:
        config = Config(model={"path": str(tiny_model), **sections.pop("model", {})}, **sections)
        family = load_family(str(tiny_model))
        setting = EngineSetting(config, family, {}, torch.nn.Linear(1, 1), log=tmp_path / "log")
        build_vllm.build(config.rollout.engine, setting)
        ((_, args, _), keys) = built.pop()
        return args[2:], keys["carrier"]

    (transfer,), carrier = carried()
    assert transfer == Transfer(same_gpu=True)
    assert transfer_settings(str(tiny_model), transfer, False) == {
        "sleep_preserve_parameter_names": [],
        "weight_transfer_config": {"backend": "ipc"},
        "enable_sleep_mode": False,
    }
    assert isinstance(carrier, TransferCarrier)
    for sections in (
        {"rollout": {"engine": {"tensor_parallel_size": 2}}},
        {"model": {"lora": {"merge": False}, "freeze_vision_tower": True}},
    ):
        transfer, carrier = carried(**sections)
        assert transfer == ()
        assert isinstance(carrier, SharedMemoryCarrier)
