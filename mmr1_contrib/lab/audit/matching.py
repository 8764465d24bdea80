"""Files of other trainers: rows in an order of their own, and prompts found among our rows.

Trainers repeat a prompt for each completion, shuffle rows and pad differently. So equal prompts
become one, and rows are sorted by prompt and completion. Two prompts are equal if their tokens and
their media are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mmr1_contrib.lab.audit.prompts import ReadPrompt
from mmr1_contrib.lab.audit.step_file import AuditError, StepFile

Key = tuple[tuple[int, ...], tuple[float, ...]]
"""Token ids of a prompt, and the means of its patches."""


def matched(file: StepFile) -> StepFile:
    """Return the same step with each prompt once, and its rows sorted by their ids."""
    tensors, lengths = file.tensors, file.lengths
    if "prompt/ids" not in tensors or "prompt/length" not in tensors:
        return file
    keys = prompt_keys(file)
    completions = [tuple(ids.tolist()) for ids in torch.split(tensors["token/ids"], lengths)]
    unique = sorted({*keys})
    of_row = [unique.index(keys[prompt]) for prompt in file.prompts]
    order = sorted(range(len(lengths)), key=lambda row: (of_row[row], completions[row]))
    out = {
        name: values for name, values in tensors.items() if name.startswith(("update/", "param/"))
    }
    out |= _prompts(tensors, [keys.index(key) for key in unique])
    for name, values in tensors.items():
        if name.startswith("row/"):
            out[name] = values[order]
        elif name.startswith("token/"):
            kept = torch.split(tensors["token/kept"], lengths) if name == "token/kept_ids" else ()
            rows = torch.split(values, [int(row.sum()) for row in kept] or lengths)
            out[name] = torch.cat([rows[row] for row in order])
    out["row/prompt"] = torch.tensor([of_row[row] for row in order]).int()
    manifest = {
        key: value
        for key, value in file.manifest.items()
        if key not in ("prompts", "rows", "messages")
    }
    return StepFile(file.path, out, manifest)


def prompt_keys(file: StepFile) -> list[Key]:
    """Return what tells the prompts of a file apart."""
    prompts = torch.split(file.tensors["prompt/ids"], file.tensors["prompt/length"].tolist())
    means = _of_media(file.tensors).get("media/patch_mean", [torch.zeros(0)] * len(prompts))
    return [
        (tuple(ids.tolist()), tuple(mean.flatten().tolist()))
        for ids, mean in zip(prompts, means, strict=True)
    ]


def _of_media(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    """Return the tensors of media, cut by prompts; nothing if the file does not count them."""
    if "prompt/media" not in tensors or "media/grid" not in tensors:
        return {}
    counts = tensors["prompt/media"].tolist()
    grids = list(torch.split(tensors["media/grid"], counts))
    cut = {"media/grid": grids}
    if "media/patch_mean" in tensors:
        patches = [int(grid.prod(1).sum()) for grid in grids]
        cut["media/patch_mean"] = list(torch.split(tensors["media/patch_mean"], patches))
    return cut


def _prompts(tensors: Mapping[str, torch.Tensor], kept: Sequence[int]) -> dict[str, torch.Tensor]:
    """Return the tensors of these prompts."""
    lengths = tensors["prompt/length"]
    cut = {"prompt/ids": list(torch.split(tensors["prompt/ids"], lengths.tolist()))}
    cut |= _of_media(tensors)
    out = {name: torch.cat([parts[n] for n in kept]) for name, parts in cut.items()}
    whole = ("prompt/length", "prompt/media", "prompt/greedy")
    return out | {name: tensors[name][list(kept)] for name in whole if name in tensors}


def rows_of_prompts(
    file: StepFile, read: Sequence[ReadPrompt], placeholders: Sequence[int]
) -> list[int]:
    """Return which of the rows, read as prompts, each prompt of a file was made of.

    Of the rows with the same text it is the one whose media are most alike.

    Args:
        file: A step with each prompt once.
        read: The rows of our data as prompts.
        placeholders: Token ids that stand for media. How often they are repeated is a difference
            that the audit shows, so it does not tell rows apart.

    Raises:
        AuditError: If no row has the text of a prompt.
    """
    texts = [_text(prompt.ids.tolist(), placeholders) for prompt in read]
    found = []
    for number, (ids, mean) in enumerate(prompt_keys(file)):
        text = _text(ids, placeholders)
        same = [row for row, other in enumerate(texts) if other == text]
        if not same:
            raise AuditError(
                f"prompt {number} of {file.path} has the text of none of {len(read)} rows of "
                f"data.train: {_nearest(text, texts)}"
            )
        found.append(min(same, key=lambda row: _distance(mean, read[row])))
    return found


def _text(ids: Sequence[int], placeholders: Sequence[int]) -> tuple[int, ...]:
    out: list[int] = []
    for token in ids:
        if token not in placeholders or not out or out[-1] != token:
            out.append(token)
    return tuple(out)


def _distance(mean: Sequence[float], prompt: ReadPrompt) -> float:
    if prompt.patches is None:
        return 0.0
    own = prompt.patches.unflatten(1, (3, -1)).mean(2).flatten()
    theirs = torch.tensor(mean)
    return float((own - theirs).abs().mean()) if own.shape == theirs.shape else torch.inf


def _nearest(text: Sequence[int], texts: Sequence[Sequence[int]]) -> str:
    def common(other: Sequence[int]) -> int:
        pairs = enumerate(zip(text, other, strict=False))
        return next((n for n, (a, b) in pairs if a != b), min(len(text), len(other)))

    best = max(map(common, texts), default=0)
    return f"the first {best} of {len(text)} tokens are those of the nearest row"
