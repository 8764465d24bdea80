"""vLLM's own transfer of weights into a real engine: the protocol, and log-probs after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

pytest.importorskip("vllm", reason="vLLM is not installed")

from mmr1.config import Config, NewLoraConfig
from mmr1.data.record import read_records
from mmr1.rollout import build_vllm
from mmr1.rollout.build import PrefetchingEngine
from mmr1.rollout.build_vllm import build_vllm_engine
from mmr1.rollout.carriers import SharedMemoryCarrier, TransferCarrier
from mmr1.rollout.engine import Request
from mmr1.rollout.engine_process import EngineProcess
from mmr1.rollout.engines import EngineSetting
from mmr1.rollout.tcp_transfer import TcpSender
from mmr1.rollout.vllm_core import SETTING
from mmr1.rollout.vllm_settings import Transfer, transfer_settings
from mmr1.rollout.weight_layout import layout_for
from mmr1.trainer.distributed.weight_source import RankSource
from mmr1.trainer.models.lora import add_adapters
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.weights import model_weights
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.rollout.test_vllm import SAMPLING, ModelInputs, gaps, parity, shake

pytestmark = pytest.mark.vllm


class Client:
    """Calls one engine in a process of its own; a ``SyncClient``."""

    version = 0

    def __init__(self, process: EngineProcess) -> None:
        self.process = process

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.process._call("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self.process._call("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.process._call("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.process._call("finish_weight_update", self.version)


def config_of(tiny_model: Path, **rollout: object) -> Config:
    return Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        full_determinism=True,
        rollout={"max_prompt_length": 64, "max_response_length": 64, **rollout},
        trainer={"threads": 1},
    )


class Parts:
    """An engine, and a model of transformers whose weights it is sent."""

    def __init__(self, config: Config, log: Path) -> None:
        path = config.model.path
        self.family = load_family(path)
        self.media = MediaCache(self.family.prepare_media)
        self.model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
        self.process = EngineProcess(build_vllm_engine, (config, None, Transfer()), log, 1, 600)
        self.engine = PrefetchingEngine(self.process, self.media)
        self.layout = layout_for(config)
        self.client = Client(self.process)
        workers = config.rollout.gpus_per_engine
        self.workers = workers
        self.sender = self.connected()

    def connected(self) -> TcpSender:
        return TcpSender(self.client, "127.0.0.1", self.workers, 600, chunk_bytes=1)

    def source(self, model: Any) -> RankSource:
        inputs = ModelInputs(self.family, self.media)
        packed = PackedModel(model, inputs, SAMPLING.temperature, budget=1000)
        return RankSource(packed.engine_weights, self.layout)

    def send(self, model: Any) -> list[str]:
        """The names that were sent."""
        source = self.source(model)
        source.begin()
        self.sender.source = source
        self.client.version += 1
        self.sender.send_weights()
        return [m.name for m in source.metadata()]

    def tested(self, model: Any) -> tuple[Any, ...]:
        return self.family, model, self.media, self.engine

    def close(self) -> None:
        self.sender.shutdown()
        self.process.close()


@pytest.fixture(
    scope="module",
    params=["0", pytest.param("1", marks=pytest.mark.slow)],
    ids=["core within", "core apart"],
)
def parts(request, tiny_model, tmp_path_factory) -> Iterator[Parts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SETTING, request.param)
        made = Parts(config_of(tiny_model), tmp_path_factory.mktemp("engine") / "engine.log")
    yield made
    made.close()


@pytest.fixture(scope="module")
def prompts(parts, mixed):
    """Text alone, one image, two images, a video."""
    return [parts.family.render_prompt(sample) for sample in read_records(mixed)[:4]]


def test_log_probs_follow_the_weights_that_are_sent(parts, prompts):
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        shake(parts.model, 1e-2, generator)
        assert gaps(parts.tested(parts.model), prompts) > 1e-3  # vision and keys are cached now
        names = parts.send(parts.model)
    assert set(names) == set(parts.model.state_dict())
    assert parity(parts.tested(parts.model), prompts).max_gap <= 1e-4


def test_adapters_come_merged_and_a_frozen_tower_stays_at_home(parts, prompts, tiny_model):
    fresh = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    parts.send(fresh)
    fresh.requires_grad_(False)
    model = add_adapters(fresh, NewLoraConfig(rank=4), freeze_vision_tower=True)
    shake(model, 1e-2, torch.Generator().manual_seed(0))
    names = parts.send(model)
    plain = set(model_weights(model))
    assert {n for n in plain if n.startswith("model.visual.")} == plain - set(names)
    assert parity(parts.tested(model), prompts).max_gap <= 1e-4


def test_a_transfer_that_breaks_off_leaves_nothing_behind(parts, prompts):
    """vLLM counts what it has of a layer; half of a layer from before must not be counted."""
    shake(parts.model, 1e-2, torch.Generator().manual_seed(1))
    source = parts.source(parts.model)
    source.begin()

    def half(source: RankSource):
        """Up to the middle of a layer: the queries without keys and values."""
        for name, weight in source:
            if "layers.1.self_attn.k_proj" in name:
                raise KeyError(name)
            yield name, weight

    class Half:
        metadata = staticmethod(source.metadata)

        def __iter__(self):
            return half(source)

    sender, parts.sender.source = parts.sender, Half()
    with pytest.raises(KeyError):
        sender.send_weights()
    sender.shutdown()
    sender._side.shutdown(wait=True)  # the engine answers that it failed
    log = parts.process._log.read_text()
    assert "ConnectionError: the trainer ended the transfer of weights" in log
    parts.process._call("abandon_weight_update")
    parts.sender = parts.connected()
    parts.send(parts.model)
    assert parity(parts.tested(parts.model), prompts).max_gap <= 1e-4


@pytest.mark.slow
def test_each_worker_of_a_split_engine_receives_weights(prompts, tiny_model, tmp_path, monkeypatch):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two workers need two cores")
    first, second, *_ = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{first}|{second}")
    split = Parts(
        config_of(tiny_model, engine={"tensor_parallel_size": 2}), tmp_path / "engine.log"
    )
    try:
        for seed in (1, 2):
            shake(split.model, 1e-2, torch.Generator().manual_seed(seed))
            split.send(split.model)
            assert parity(split.tested(split.model), prompts).max_gap <= 1e-4
    finally:
        split.close()


def test_a_carrier_brings_the_weights_of_one_process_and_again_to_a_new_engine(
    prompts, tiny_model, tmp_path
):
    """As on a GPU, whose backend ``ipc`` a CPU does not have; the calls are the same."""
    config = config_of(tiny_model)
    carrier = TransferCarrier(
        lambda client, source: TcpSender(client, "127.0.0.1", 1, 600), layout_for(config), "cpu"
    )
    args = (config, None, Transfer(same_gpu=True))
    process = EngineProcess(
        build_vllm_engine, args, tmp_path / "log", 1, 600, restarts=1, carrier=carrier
    )
    try:
        # What of vLLM's settings is on goes to the run's log.
        for setting in ("CUDA graphs off", "chunked prefill off", "prefix caching on"):
            assert setting in process.settings
        family = load_family(str(tiny_model))
        model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
        media = MediaCache(family.prepare_media)
        tested = (family, model, media, PrefetchingEngine(process, media))
        for version in (1, 2):
            shake(model, 1e-2, torch.Generator().manual_seed(version))
            process.load_weights(model.state_dict(), version)
            assert parity(tested, prompts).max_gap <= 1e-4
        process._process.kill()
        groups = tested[3].generate([Request(prompts[0], 2, 0)], SAMPLING)
        assert process.restarted == 1
        assert {c.policy_version for c in groups[0].completions} == {2}
        assert parity(tested, prompts).max_gap <= 1e-4
    finally:
        process.close()


def test_beside_a_trainer_on_its_gpu_weights_do_not_leave_it(tiny_model, tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def started(*args: Any, **keys: Any) -> SimpleNamespace:
        built.append((args, keys))
        return SimpleNamespace(settings="")

    monkeypatch.setattr(build_vllm, "EngineProcess", started)

    def carried(**sections: object) -> tuple[Any, Any]:
        config = Config(model={"path": str(tiny_model), **sections.pop("model", {})}, **sections)
        family = load_family(str(tiny_model))
        setting = EngineSetting(config, family, None, torch.nn.Linear(1, 1), log=tmp_path / "log")
        build_vllm.build(setting)
        ((_, args), keys) = built.pop()
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
