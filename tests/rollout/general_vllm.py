"""vLLM's engine with a model that mmr1 does not name."""

from __future__ import annotations

from contextlib import contextmanager

from mmr1.config import Config, SamplingConfig
from mmr1.rollout.build import build_engine
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.vision.prepare import MediaCache
from tests.vision.families.general_family import General

SAMPLING = SamplingConfig(max_tokens=12, temperature=0.9)


@contextmanager
def in_vllm(general: General, policy, folder, max_response_length: int, **sections):
    """vLLM's engine with a model, the trainer's one, and their media."""
    media = MediaCache(general.family.prepare_media)
    config = Config(
        model={"path": str(general.folder), "dtype": "float32", **sections.pop("model", {})},
        rollout={"max_prompt_length": 448, "max_response_length": max_response_length},
        trainer={"threads": 1},
        **sections,
    )
    engine = build_engine(config, general.family, media, folder / "engine.log", policy)
    try:
        inputs = ModelInputs(general.family, media)
        yield (
            engine,
            PackedModel(
                policy,
                inputs,
                Distribution(SAMPLING.temperature, forbidden=inputs.family.forbidden_ids),
                budget=1000,
            ),
            media,
        )
    finally:
        engine.close()
