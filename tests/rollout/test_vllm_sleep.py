"""What vLLM keeps of a frozen tower at level 2, in real engines.

vLLM cannot sleep on a CPU. Here its engine loses what level 2 forgets: parameters that it is not
told to preserve, and tensors that are neither parameters nor buffers.
"""

from __future__ import annotations

import json
import shutil
from fnmatch import filter as matching
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.v1.worker.gpu.mm.encoder_runner import EncoderRunner
from vllm.v1.worker.gpu.mm.rope import RopeState
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from mmr1.config import Config
from mmr1.data.record import read_records
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.engine_process import EngineProcess
from mmr1.rollout.prefetching import Prefetching
from mmr1.rollout.vllm import VllmEngine
from mmr1.rollout.vllm_settings import Transfer
from mmr1.rollout.vllm_sleep import blank_scratch, preserved_parameters
from mmr1.trainer.distributed.weight_source import left_out
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.hub_files import save_pretrained
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.parts import outside_language_model
from mmr1.trainer.sampling.parity import check_parity
from mmr1.vision.families.family import is_packed
from mmr1.vision.families.loading import load_family, names_of_hub
from mmr1.vision.prepare import MediaCache
from tests.rollout.vllm_engines import SAMPLING, shake
from tests.vision.families.general_family import GENERAL
from tests.vision.families.general_models import MODELS
from tests.vision.families.tiny_family import FAMILIES, TEXT

pytestmark = pytest.mark.vllm

SLOW = [n for n in (*FAMILIES, *MODELS) if n not in (*TEXT, "qwen3_vl")]
LANGUAGE = ("language_model.", "lm_head.", "model.text_model.", "model.language_model.")


class ForgetfulEngine(VllmEngine):
    """An engine that sleeps as level 2 leaves a GPU."""

    def forget(self) -> tuple[list[str], list[str]]:
        """Names of the parameters that it keeps, and of those that it loses."""
        ((kept, lost),) = self._llm.collective_rpc(_forget)
        return kept, lost


def _forget(worker: Any) -> tuple[list[str], list[str]]:
    model, patterns = worker.get_model(), worker.model_config.sleep_preserve_parameter_names
    worker._save_sleep_parameters(model)  # vLLM's own, which refuses what fits no parameter
    parameters = dict(model.named_parameters())
    kept = {name for pattern in patterns for name in matching(parameters, pattern)}
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name not in kept:
                parameter.fill_(torch.nan)
        for scratch in getattr(model, "deepstack_input_embeds", ()):
            scratch.fill_(1e3)
    return sorted(kept), sorted(parameters.keys() - kept)


def forgetful_engine(media, config: Config, left_out: tuple[str, ...]) -> ForgetfulEngine:
    path, transfer = config.model.path, Transfer(True, True, left_out)
    family = load_family(path)
    return ForgetfulEngine(
        path,
        config.rollout,
        family,
        media,
        "float32",
        0,
        vision_frozen=True,
        names=None if is_packed(family) else names_of_hub(path, False),
        transfer=transfer,
    )


def config_of(path: Path) -> Config:
    return Config(
        model={"path": str(path), "dtype": "float32", "freeze_vision_tower": True},
        rollout={"engine": "vllm", "max_prompt_length": 448, "max_response_length": 64},
        trainer={"threads": 1},
    )


class Asleep:
    """A model of transformers with a frozen tower, and the engine that is sent the rest of it.

    Args:
        preserves: The engine is told what is left out.
    """

    def __init__(self, tiny: Any, folder: Path, preserves: bool = True) -> None:
        path = shutil.copytree(tiny.folder, folder / "model")
        self.config, self.family = config_of(path), tiny.family
        self.media = MediaCache(self.family.prepare_media)
        self.model = tiny.model()
        # The tower that the engine reads is the model's.
        save_pretrained(self.model, Path(path), self.model.state_dict(), {})
        self.vision = outside_language_model(self.model)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name not in self.vision)
        kept = left_out(self.config) if preserves else ()
        self.process = EngineProcess(
            forgetful_engine, (self.config, kept), self.media.__getitem__, folder / "log", 1, 600
        )
        inputs = ModelInputs(self.family, self.media)
        self.packed = PackedModel(
            self.model,
            inputs,
            Distribution(SAMPLING.temperature, forbidden=inputs.family.forbidden_ids),
            budget=1000,
        )

    def wake_up(self) -> list[str]:
        """The names that are sent."""
        weights = self.packed.engine_weights()
        self.process.load(weights, 1)
        return list(weights)

    def check(self, prompts: Any) -> None:
        engine = Prefetching(self.process, self.media)
        check_parity(engine, self.packed, self.family, self.media, prompts, SAMPLING, 1e-4)


def check_family(name: str, prompts: Any, folder: Path) -> None:
    asleep = Asleep(FAMILIES.get(name) or GENERAL[name], folder)
    try:
        for seed in (1, 2):
            shake(asleep.model, 1e-2, torch.Generator().manual_seed(seed))
            asleep.process._call("rest")
            kept, lost = asleep.process._call("forget")
            assert kept
            assert not [n for n in kept if n.startswith(LANGUAGE)]
            assert not [n for n in lost if not n.startswith(LANGUAGE)]
            sent = asleep.wake_up()
            assert len(sent) == len(set(asleep.model.state_dict()) - asleep.vision)
            asleep.check(prompts)
    finally:
        asleep.process.close()


def prompts_of(name: str, mixed: Any) -> Any:
    if name in MODELS:  # vLLM reads a video, and several images, of some of them otherwise
        groups = (g.prompt for g in GENERAL[name].groups())
        read_alike = ([],) if name == "gemma3" else ([], ["image"])
        return [p for p in groups if [m.kind for m in p.media] in read_alike]
    return [FAMILIES[name].family.render_prompt(s) for s in read_records(mixed)[:4]]


def test_a_frozen_tower_outlives_the_sleep_of_its_engine(mixed, tmp_path):
    """Of Qwen3-VL, which has scratch space among its weights."""
    check_family("qwen3_vl", prompts_of("qwen3_vl", mixed), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_of_any_family(name, mixed, tmp_path):
    check_family(name, prompts_of(name, mixed), tmp_path)


def test_what_is_forgotten_is_seen(mixed, tmp_path):
    """So that the test above can fail: nobody preserves the tower, and nobody sends it."""
    asleep = Asleep(FAMILIES["qwen2_5_vl"], tmp_path, preserves=False)
    try:
        asleep.process._call("rest")
        kept, lost = asleep.process._call("forget")
        assert not kept
        assert [n for n in lost if n.startswith("visual.")]
        asleep.wake_up()
        with pytest.raises(Exception, match=r"differ|nan|NaN"):
            asleep.check(prompts_of("qwen2_5_vl", mixed)[1:2])
    finally:
        asleep.process.close()


def test_beginnings_of_names_in_files_become_vllms_patterns(tiny_model):
    beginnings = ("model.visual.", "model.visual.merger.mlp.0.bias")
    patterns = preserved_parameters(str(tiny_model), beginnings)
    assert patterns == ["visual.*", "visual.merger.mlp.0.bias"]
    assert preserved_parameters("there is no such model", ()) == []


def test_a_model_that_vllm_does_not_know_is_refused(tiny_model, tmp_path):
    config = json.loads((Path(tiny_model) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["Unknown"]}))
    with pytest.raises(ValueError, match=r"vLLM has no class 'Unknown'.*rollout\.engine=vllm"):
        preserved_parameters(str(tmp_path), ["visual."])


def test_the_second_runner_wakes_up_with_zeros_in_its_state():
    """Rows that pad a step of a CUDA graph are read, and have what the memory had."""
    # Their constructors take pinned memory, or a whole configuration; these are the tensors.
    rope, encoder = RopeState.__new__(RopeState), EncoderRunner.__new__(EncoderRunner)
    state = DefaultModelState.__new__(DefaultModelState)
    rope.positions, encoder.inputs_embeds = torch.full((3, 9), 1 << 40), torch.full((8, 4), 1e30)
    state.rope_state, state.encoder_runner, state.device = rope, encoder, torch.device("cpu")
    model = torch.nn.Linear(2, 2)
    weight = model.weight.detach().clone()
    blank_scratch(SimpleNamespace(model=model, model_state=state))
    assert not rope.positions.any()
    assert not encoder.inputs_embeds.any()
    assert torch.equal(model.weight, weight)
    state.rope_state = None  # of a text model
    blank_scratch(SimpleNamespace(model=model, model_state=state))


def test_scratch_of_a_model_without_any_is_none():
    blank_scratch(SimpleNamespace(model=torch.nn.Linear(1, 1)))
    assert left_out(config_of(FAMILIES["qwen3"].folder)) == ()
