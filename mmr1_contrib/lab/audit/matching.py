"""Rows of a step file in an order that does not depend on the trainer.

Trainers repeat a prompt for each completion, shuffle rows and pad differently. So equal prompts
become one, and rows are sorted by prompt and completion.
"""

from __future__ import annotations

import torch

from mmr1_contrib.lab.audit.step_file import StepFile


def matched(file: StepFile) -> StepFile:
    """Return the same step with each prompt once, and its rows sorted by their ids."""
    tensors, lengths = file.tensors, file.lengths
    if "prompt/ids" not in tensors or "prompt/length" not in tensors:
        return file
    prompts = [
        tuple(ids.tolist())
        for ids in torch.split(tensors["prompt/ids"], tensors["prompt/length"].tolist())
    ]
    completions = [tuple(ids.tolist()) for ids in torch.split(tensors["token/ids"], lengths)]
    unique = sorted(set(prompts))
    of_row = [unique.index(prompts[prompt]) for prompt in file.prompts]
    order = sorted(range(len(lengths)), key=lambda row: (of_row[row], completions[row]))
    out = {
        name: values for name, values in tensors.items() if name.startswith(("update/", "param/"))
    }
    out["prompt/ids"] = torch.tensor([token for ids in unique for token in ids]).int()
    out["prompt/length"] = torch.tensor([len(ids) for ids in unique]).int()
    for name, values in tensors.items():
        if name.startswith("row/"):
            out[name] = values[order]
        elif name.startswith("token/"):
            rows = torch.split(values, lengths)
            out[name] = torch.cat([rows[row] for row in order])
    out["row/prompt"] = torch.tensor([of_row[row] for row in order]).int()
    manifest = {
        key: value for key, value in file.manifest.items() if key not in ("prompts", "rows")
    }
    return StepFile(file.path, out, manifest)
