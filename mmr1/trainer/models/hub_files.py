"""The model's own files in a checkpoint: a Hugging Face directory, written weight by weight.

transformers' ``save_pretrained`` wants all weights at once. Here it writes what is beside them, and
the weights follow one by one, each to its place in its file. Ranks put each together for that.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from mmr1.trainer.models.lora import ADAPTER, ADAPTER_FOLDER, WEIGHTS, has_adapters
from mmr1.trainer.models.quantization import saved_as_plain
from mmr1.trainer.models.streaming import TensorFile
from mmr1.trainer.models.weights import Sketch, sketches
from mmr1.vision.families.loading import architecture_of, unwrapped

_FILE, _INDEX = "model{suffix}.safetensors", "model.safetensors.index.json"
_LARGEST = "50GB"  # of a file, as transformers has it

Weights = Mapping[str, torch.Tensor]
LayOut = Callable[[Weights], Weights]
"""From weights of the model makes those that files have, by their names there."""


def save_pretrained(
    model: Any, folder: Path, weights: Weights, adapters: Weights, writes: bool = True
) -> None:
    """Write a Hugging Face directory of these weights, with the adapters in ``adapter/``.

    They are those of :func:`weights.model_weights` and :func:`weights.model_adapters`, or copies.
    All ranks of a sharded model must call it.

    Args:
        writes: This process writes; another one only puts the weights together.
    """
    base = unwrapped(model)
    with saved_as_plain(base):
        known = sketches(weights)
        lay_out = _layout(base, known)
        groups = _groups(lay_out, {name: known[name].like for name in _untied(base, known)})
        copy_recipe = (lay_out({name: weights[name] for name in group}) for group in groups)
        made = ((name, tensor) for group in copy_recipe for name, tensor in group.items())
        of_adapters = iter(adapters.items())
        try:
            if writes:
                _save_all_but_weights(base, folder)
                _write_weights(folder, {n: t for g in groups for n, t in lay_out(g).items()}, made)
            if writes and has_adapters(model):
                (folder / ADAPTER_FOLDER).mkdir()
                _save_settings(model.peft_config[ADAPTER], folder / ADAPTER_FOLDER)
                likes = {name: sketch.like for name, sketch in sketches(adapters).items()}
                _write_files(folder / ADAPTER_FOLDER, {WEIGHTS: likes}, of_adapters)
        finally:  # where writing failed, the other ranks still put the rest together
            for rest in (made, of_adapters):
                deque(rest, maxlen=0)


def _save_all_but_weights(base: Any, folder: Path) -> None:
    dtype = base.config.dtype
    base.save_pretrained(folder, state_dict={})
    if getattr(torch, base.config.dtype) != dtype:  # it wrote that of the parameters in training
        base.config.dtype = dtype
        base.config.save_pretrained(folder)
    base.config.dtype = dtype
    path = folder / "config.json"
    settings, _ = with_older_keys(json.loads(path.read_text()))
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def with_older_keys(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Add the keys by which transformers 4 reads a ``config.json`` of transformers 5.

    Returns:
        The settings with both layouts, and the parts of the model that only transformers 5 reads.
    """
    written, unread = dict(settings), list[str]()
    for name, part in settings.items():
        if isinstance(part, Mapping) and "model_type" in part:
            written[name], below = with_older_keys(part)
            unread += below
            if name == "text_config" and "tie_word_embeddings" in settings:
                written[name]["tie_word_embeddings"] = settings["tie_word_embeddings"]
    rope = settings.get("rope_parameters")
    if not rope:
        return written, unread
    known = _older_rope(rope)
    if known is None:
        unread.append(f"rotary embedding of {settings.get('model_type')}")
    return {**written, **(known or {})}, unread


_FIXED_ROPE = {"rope_type": "axial", "rope_theta": 10000.0}
"""The rotary embedding of Qwen's vision towers, which transformers 4 does not configure."""


def _older_rope(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return ``rope_parameters`` by the names of transformers 4; None if it has none for them."""
    by_layer = {name: own for name, own in rope.items() if isinstance(own, Mapping)}
    if by_layer.keys() == {"full_attention", "sliding_attention"}:  # as Gemma 3
        whole, window = _older_rope(by_layer["full_attention"]), by_layer["sliding_attention"]
        if whole is None or window.get("rope_type") != "default":
            return None
        return {**whole, "rope_local_base_freq": window["rope_theta"]}
    if by_layer or "rope_theta" not in rope:
        return None
    if rope == _FIXED_ROPE:
        return {}
    scaling = {name: value for name, value in rope.items() if name not in _NOT_SCALING}
    partial = {n: rope[n] for n in ("partial_rotary_factor",) if n in rope}
    plain = not scaling.keys() - {"rope_type", "type"} and rope.get("rope_type") == "default"
    return {"rope_theta": rope["rope_theta"], "rope_scaling": None if plain else scaling, **partial}


_NOT_SCALING = {"rope_theta", "partial_rotary_factor"}


def _save_settings(settings: Any, folder: Path) -> None:
    """Write the settings of adapters, with peft's sets of names in a fixed order."""
    settings.save_pretrained(folder)
    path = folder / "adapter_config.json"
    tree = json.loads(path.read_text())
    for key in ("target_modules", "exclude_modules"):
        if isinstance(tree[key], list):
            tree[key] = sorted(tree[key])
    path.write_text(json.dumps(tree, indent=2, sort_keys=True))


def _untied(base: Any, known: Mapping[str, Sketch]) -> Weights:
    """The weights to be saved: of tied weights, the one that transformers expects."""
    one_of = {sketch.memory: torch.empty(1) for sketch in known.values()}
    stand_ins = {name: one_of[sketch.memory] for name, sketch in known.items()}
    for name in base._keys_to_ignore_on_save or ():
        stand_ins.pop(name, None)
    kept: Weights = remove_tied_weights_from_state_dict(stand_ins, base)
    return kept


def _layout(base: Any, known: Mapping[str, Sketch]) -> LayOut:
    """A function that lays weights out as files of the hub have them."""
    in_files = architecture_of(base).in_files

    def turned(weights: Weights) -> Weights:
        return {name: in_files(name, weight) for name, weight in weights.items()}

    if any(in_files(name, sketch.like) is not sketch.like for name, sketch in known.items()):
        return turned  # transformers would turn them back
    return lambda weights: revert_weight_conversion(base, dict(weights))


def _groups(lay_out: LayOut, likes: Weights) -> list[Weights]:
    """Weights one by one, except for those that the files join."""
    groups: list[dict[str, torch.Tensor]] = []
    group_with: dict[str, dict[str, torch.Tensor]] = {}
    for name, like in likes.items():
        in_file = list(lay_out({name: like}))
        group = next((group_with[n] for n in in_file if n in group_with), None)
        if group is None:
            groups.append(group := {})
        group[name] = like
        group_with |= dict.fromkeys(in_file, group)
    return list(groups)


def _write_weights(
    folder: Path, likes: Weights, weights: Iterable[tuple[str, torch.Tensor]]
) -> None:
    split = split_torch_state_dict_into_shards(
        dict(likes), filename_pattern=_FILE, max_shard_size=_LARGEST
    )
    files = {
        file: {name: likes[name] for name in names}
        for file, names in split.filename_to_tensors.items()
    }
    _write_files(folder, files, weights)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _write_files(
    folder: Path, likes: Mapping[str, Weights], weights: Iterable[tuple[str, torch.Tensor]]
) -> None:
    """Write safetensors files, whose weights may come in any order.

    Args:
        likes: Contents of each file, on the ``meta`` device.
    """
    with ExitStack() as stack:
        file_with: dict[str, TensorFile] = {}
        for name, own in likes.items():
            file = stack.enter_context(TensorFile(folder / name, own, {"format": "pt"}))
            file_with |= dict.fromkeys(own, file)
        for name, weight in weights:
            file_with[name].write(name, weight)
