"""The contract of model, tokenizer, template and settings: each promise, broken and mended."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from mmr1.config import Config, ModelConfig
from mmr1.rewards import build_composite_reward
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.protocol import Request, complete
from mmr1.trainer.contract import PROMISES, find_assumptions
from mmr1.trainer.models.loading import load_model, load_trainable
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.types import Completion, MediaRef, Message, RolloutGroup, Sample, TextPart
from mmr1.vision.build import family_of
from mmr1.vision.families.registry import COORDINATES
from mmr1.vision.families.tiny import new_model
from mmr1.vision.prepare import MediaCache

QUESTION = Sample("q", (Message("user", (TextPart("Which digit is this?"),)),), answer="7")


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "text"
    new_model(path, family="qwen3")
    return path


@pytest.fixture
def copied(text_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(text_model, tmp_path / "model"))


def config_of(path: Path, **sections: Any) -> Config:
    model = {"path": str(path), "dtype": "float32", **sections.pop("model", {})}
    rewards = {"format": 1.0}
    rollout = {"engine": "hf", **sections.pop("rollout", {})}
    return Config(**{"model": model, "rewards": rewards, "rollout": rollout, **sections})


def said(config: Config, samples: Any = ()) -> list[str]:
    found = find_assumptions(config, family_of(config), samples)
    return [line for lines in found.values() for line in lines]


def change(file: Path, **values: Any) -> None:
    settings = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**settings, **values}))


def template(path: Path, ending: str = "", end: str = "<|im_end|>") -> None:
    file = path / "chat_template.jinja"
    text = file.read_text().replace("<|im_end|>", end)
    file.write_text(text.replace("assistant\n", f"assistant\n{ending}"))


def id_of(path: Path, token: str) -> int:
    return int(AutoTokenizer.from_pretrained(path).convert_tokens_to_ids(token))


def with_tokens(path: Path, *tokens: str, special: bool = True) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens(list(tokens), special_tokens=special)
    tokenizer.save_pretrained(path)


@pytest.mark.parametrize("named", [("generation_config.json",), (), ("config.json",)])
@pytest.mark.parametrize("end", ["<|im_end|>", "<|quad_end|>"])
def test_end_of_turn_stops_a_completion(copied, named, end):
    """Whichever file names it, or none."""
    template(copied, end=end)
    change(copied / "tokenizer_config.json", eos_token="<|endoftext|>")
    for file in ("generation_config.json", "config.json"):
        change(copied / file, eos_token_id=id_of(copied, end if file in named else "<|endoftext|>"))
    config = config_of(copied)
    family = family_of(config)
    assert id_of(copied, end) in family.stop_ids
    assert any("ends a turn with" in line for line in said(config)) == (not named)
    assert family.chat.response_tokens("7")[-1] == id_of(copied, end)


def test_untouched_models_have_nothing_to_say(text_model, tiny_model):
    for path in (text_model, tiny_model):
        assert said(config_of(path)) == []


@pytest.mark.parametrize("stop", ["<|quad_end|>", "</answer>"])
def test_stop_text_of_a_token_ends_completions(copied, stop):
    with_tokens(copied, "</answer>")
    config = config_of(copied, rollout={"stop": [stop]})
    assert id_of(copied, stop) in family_of(config).stop_ids
    assert "is one token" in said(config)[0]


@pytest.mark.parametrize("stop", ["x<|quad_end|>", "<|im_end|>\n"])
def test_stop_text_around_a_token_is_refused(copied, stop):
    with pytest.raises(ValueError, match=r"rollout\.stop .* name the token alone"):
        said(config_of(copied, rollout={"stop": [stop]}))


def scores(config: Config, text: str) -> float | None:
    family = family_of(config)
    prompt = family.render_prompt(QUESTION)
    ids = np.array(family.chat.response_tokens(text))
    shown = family.chat.completion_text(ids.tolist())
    group = RolloutGroup(prompt, (Completion(ids, np.zeros(len(ids)), shown, False, 0),))
    with build_composite_reward(config.rewards, config.scoring) as rewards:
        manager = RewardManager(rewards, MediaCache(family.prepare_media), 0.0)
        return manager.score([group])[0].rewards[0].value


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(
    ("opening", "completion"),
    [
        ("", "<think>a</think><answer>7</answer>"),
        ("<think>\n", "a</think><answer>7</answer>"),
        ("<think>", "a</think>\n<answer>7</answer>"),
    ],
)
def test_rewards_read_what_the_model_wrote(copied, special, opening, completion):
    """Also where its tags are special tokens, or the template has opened one."""
    with_tokens(copied, "<think>", "</think>", "<answer>", "</answer>", special=special)
    template(copied, opening)
    config = config_of(copied)
    assert scores(config, completion) == 1.0
    assert scores(config, "no tags") == 0.0
    family = family_of(config)
    assert family.chat.turn.opened == opening
    assert any("opens answers" in line for line in said(config)) == bool(opening)
    around = [*family.chat.response_tokens("7"), id_of(copied, "<|endoftext|>")]
    assert family.chat.completion_text(around) == "7"


@pytest.mark.parametrize(
    "opening", ["<think>\n\n</think>\n\n", "<assistant>", "<start_of_turn>model\n"]
)
def test_closed_tags_and_turns_are_not_opened(copied, opening):
    """Of a thought that the template closes, and of tags that stand before written answers too."""
    file = copied / "chat_template.jinja"
    file.write_text(
        "{% for m in messages %}{{ '" + ("" if "/" in opening else opening) + "' if m['role'] =="
        " 'assistant' }}{{ m['content'] }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}" + opening + "{% endif %}"
    )
    assert family_of(config_of(copied)).chat.turn.opened == ""


@pytest.mark.parametrize(
    ("architecture", "rates"),
    [
        ("qwen3", {"attention_dropout": 0.5}),
        ("opt", {"dropout": 0.1, "attention_dropout": 0.2, "layerdrop": 0.3}),
        ("phi", {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attention_dropout": 0.1}),
    ],
)
def test_dropout_is_switched_off_on_load(text_model, tmp_path, architecture, rates):
    """In training mode log-probs are those of plain transformers in evaluation mode."""
    sizes: dict[str, Any] = {"vocab_size": 640, "hidden_size": 64, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "intermediate_size": 64, "ffn_dim": 64}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 128, "word_embed_proj_dim": 64}
    settings = AutoConfig.for_model(architecture, **sizes, **rates)
    AutoModelForCausalLM.from_config(settings).save_pretrained(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(text_model / name, tmp_path / "m")
    config = config_of(tmp_path / "m")
    ids = torch.arange(100, 130)[None]
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
        wanted = plain.eval()(input_ids=ids).logits.log_softmax(-1)
        ours = load_trainable(config.model).train()(input_ids=ids).logits.log_softmax(-1)
    torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=0)
    (line,) = [line for line in said(config) if "dropout" in line]
    assert all(f"{name}={rate:g}" in line for name, rate in rates.items())


@pytest.mark.parametrize("special", [True, False])
def test_tokens_beyond_the_embedding_are_refused_where_used(copied, special):
    """A larger tokenizer is fine as long as no record uses what has no embedding."""
    with_tokens(copied, *(f"<extra{n}>" for n in range(240)), special=special)
    family = family_of(config_of(copied))
    assert len(family.tokenizer) > 640
    assert "the model 640 embeddings" in "".join(said(config_of(copied)))
    assert family.render_prompt(QUESTION).token_ids
    asked = Sample("q", (Message("user", (TextPart("What is <extra230>?"),)),))
    with pytest.raises(ValueError, match=r"<extra230>.* 640 rows of embeddings"):
        family.render_prompt(asked)
    with pytest.raises(ValueError, match="640 rows of embeddings"):
        family.chat.response_tokens("<extra231>")
    assert all(token < 640 for token in family.forbidden_ids)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "compressed-tensors"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes in 8 bits"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, r"model\.lora=\{\}, QLoRA"),
    ],
)
def test_quantized_weights_are_refused_by_name(copied, settings, named):
    change(copied / "config.json", quantization_config=settings)
    with pytest.raises(ValueError, match=rf"model\.path .*quantized by .*{named}"):
        load_trainable(config_of(copied).model)


@pytest.mark.parametrize("reward", ["iou", "auto"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_boxes_are_read_in_the_space_of_the_family(tmp_path, family, reward):
    """A box written in the space of each family is the gold box in original pixels."""
    from PIL import Image

    new_model(tmp_path / "m", family=family)
    Image.new("RGB", (400, 300)).save(tmp_path / "p.png")
    config = config_of(
        tmp_path / "m",
        rewards={reward: 1.0},
        data={"image": {"max_pixels": 100 * 28 * 28}},
    )
    parts = (MediaRef("image", tmp_path / "p.png", size=(400, 300)), TextPart("Where?"))
    sample = Sample("b", (Message("user", parts),), [40.0, 30.0, 200.0, 150.0], "grounding")
    read = family_of(config)
    media = MediaCache(read.prepare_media)
    width, height = media[sample.shown[0]].pixels
    scale = {"resized": (width, height), "0-1000": (1000, 1000)}[COORDINATES[family]]
    box = [0.1 * scale[0], 0.1 * scale[1], 0.5 * scale[0], 0.5 * scale[1]]
    text = f"<answer>{[round(x, 2) for x in box]}</answer>"
    group = RolloutGroup(
        read.render_prompt(sample), (Completion(np.array([5]), np.zeros(1), text, False, 0),)
    )
    with build_composite_reward(config.rewards, config.scoring) as rewards:
        manager = RewardManager(rewards, media, 0.0, read.coordinates)
        assert manager.score([group])[0].rewards[0].value == pytest.approx(1.0, abs=1e-3)
    lines = " ".join(said(config, [sample]))
    assert f"in the space {COORDINATES[family]}, as the model's family answers" in lines
    assert ("1 of 1 pictures are shown at another size" in lines) == (family == "qwen2_5_vl")


@pytest.mark.parametrize("reward", ["iou", "auto"])
def test_unknown_space_is_refused_unless_set(text_model, reward):
    parts = (TextPart("Where?"),)
    sample = Sample("b", (Message("user", parts),), [0.0, 0.0, 1.0, 1.0], "grounding")
    with pytest.raises(ValueError, match="coordinates in which a 'qwen3' model answers"):
        said(config_of(text_model, rewards={reward: 1.0}), [sample])
    options = {"space": "0-1"} if reward == "iou" else {"settings": {"iou": {"space": "0-1"}}}
    functions = {reward: options}
    lines = said(config_of(text_model, rewards=functions), [sample])
    assert "in the space 0-1" in " ".join(lines)
    tools = {"type": "tools", "tools": ["zoom"]}
    with pytest.raises(ValueError, match=r"set environment\.boxes to resized"):
        said(config_of(text_model, environment=tools), [sample])
    lines = said(config_of(text_model, environment={**tools, "boxes": "0-1000"}), [sample])
    assert "environment.boxes: boxes are read in the space 0-1000" in " ".join(lines)
    if reward == "auto":  # nothing to know where no record is about boxes
        assert said(config_of(text_model, rewards={"auto": 1.0}), [QUESTION]) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Org/Model@abc123", "--revision abc123"),
        ("{folder}/adapters", r"name it in model\.lora\.path.*base-model"),
    ],
)
def test_revision_and_adapters_as_a_model_are_named(tmp_path, name, message):
    (tmp_path / "adapters").mkdir()
    change(tmp_path / "adapters" / "adapter_config.json", base_model_name_or_path="base-model")
    with pytest.raises(ValueError, match=message):
        family_of(config_of(Path(name.format(folder=tmp_path))))


@pytest.mark.parametrize("key", ["temperature", "top_k"])
def test_generation_settings_that_cannot_be_saved_are_refused(copied, key):
    change(copied / "generation_config.json", do_sample=False, **{key: 20})
    with pytest.raises(ValueError, match=r"generation_config\.json cannot be read"):
        family_of(config_of(copied))


ODD: tuple[Any, ...] = (None, [], {}, "text", -1, 0, 1.5, True, [1, "a"], {"a": None})


def _whole_file(draw: random.Random, file: Path) -> None:
    text = file.read_bytes()
    broken = (b"null", b"[]", b"[1, 2]", b"3", b"{}", b"", b"{", text[: len(text) // 2])
    file.write_bytes(draw.choice(broken))


def _one_value(draw: random.Random, file: Path) -> None:
    settings = json.loads(file.read_text())
    nodes = [settings, *(v for v in settings.values() if isinstance(v, dict) and v)]
    node = draw.choice(nodes)
    node[draw.choice([*node, "quantization_config", "eos_token_id"])] = draw.choice(ODD)
    file.write_text(json.dumps(settings))


def _missing(draw: random.Random, file: Path) -> None:
    file.unlink()


def _index_without_shards(draw: random.Random, file: Path) -> None:
    weights = {"lm_head.weight": "model-00001-of-00002.safetensors"}
    index = file.parent / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    if draw.random() < 0.5:
        (file.parent / "model.safetensors").unlink()


def _cut_weights(draw: random.Random, file: Path) -> None:
    weights = file.parent / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: draw.randrange(len(data))])


def _other_tokenizer(draw: random.Random, file: Path) -> None:
    tokenizer = file.parent / "tokenizer.json"
    tree = json.loads(tokenizer.read_text())
    tree[draw.choice([*tree])] = draw.choice(ODD)
    tokenizer.write_text(json.dumps(tree))


BREAKS: tuple[Callable[[random.Random, Path], None], ...] = (
    *(_one_value, _one_value, _one_value, _one_value, _whole_file, _missing),
    *(_index_without_shards, _cut_weights, _other_tokenizer),
)


def _use(path: Path) -> None:
    """What every command does with a model: its contract, its weights, a rollout, a checkpoint."""
    config = config_of(path)
    family = family_of(config)
    find_assumptions(config, family)
    model = load_model(ModelConfig(path=str(path), dtype="float32"))
    engine = HfEngine(model, family, MediaCache(family.prepare_media))
    sampling = config.rollout.sampling.changed(max_tokens=2)
    complete(engine, [Request(family.render_prompt(QUESTION), (0,), sampling)])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["text", "vision"])
def test_broken_folder_is_one_line(text_model, tiny_model, tmp_path, kind, seed):
    """25 folders for each seed and kind, 200 in all: none ends in another error than ValueError."""
    draw, source = random.Random(f"{kind}{seed}"), text_model if kind == "text" else tiny_model
    refused = 0
    for number in range(25):
        folder = Path(shutil.copytree(source, tmp_path / str(number)))
        files = sorted(folder.glob("*.json"))
        likely = [folder / "config.json", folder / "generation_config.json", *files]
        for broken in [draw.choice(BREAKS)]:
            broken(draw, draw.choice([f for f in likely if f.name != "tokenizer.json"]))
        try:
            _use(folder)
        except ValueError as error:
            refused += 1
            assert str(folder) in str(error), error
            assert "\n" not in str(error)
        shutil.rmtree(folder)
    assert refused >= 5


def test_promises_have_one_owner_each():
    names = [promise.name for promise in PROMISES]
    assert len(names) == len({*names})
    assert all(promise.checked and promise.broken for promise in PROMISES)
