"""Probe which of transformers' types share prompts, and write the table of docs/models.md.

    python scripts/dev/sharing_table.py out.jsonl                # runs what is not in it yet
    python scripts/dev/sharing_table.py out.jsonl --write        # the table into docs/models.md
    python scripts/dev/sharing_table.py out.jsonl --only gemma3 llava

Every type is probed on texts, small and random, in a separate process. One that runs out of its
time has the status ``late``, and one whose process died ``died``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs/models.md"
BEGIN, END = "<!-- sharing: begin -->", "<!-- sharing: end -->"
MAPPINGS = ("image-text-to-text", "causal LM")

MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]}
GLM_ROPE = {**MROPE, "mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    **{name: {"rope_parameters": GLM_ROPE} for name in ("glm4v", "glm46v", "glmga")},
    "glm4v_moe": {"rope_parameters": GLM_ROPE, "head_dim": 128},
    "glm_ocr": {"rope_parameters": MROPE, "head_dim": 128},
    "paddleocr_vl": {"rope_parameters": MROPE},
    "qwen2_5_omni_thinker": {"rope_parameters": MROPE, ".vision_start_token_id": 120},
    "qwen3_omni_moe_thinker": {".vision_start_token_id": 120},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lfm2_vl": {"layer_types": ["conv", "full_attention"]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
}  # fmt: skip
"""What published configurations have and the default one lacks; with a dot not of the text part."""


def types() -> Iterator[tuple[str, str, str]]:
    """The mapping, type and class of each."""
    from transformers.models.auto import modeling_auto as auto

    names = (
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )
    for mapping, found in zip(MAPPINGS, names, strict=True):
        for model_type, name in found.items():
            yield mapping, model_type, name if isinstance(name, str) else name[0]


def probed(model_type: str, class_name: str) -> dict[str, Any]:
    """The verdict on a model as a whole, or else on its text part."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    try:
        config = CONFIG_MAPPING[model_type]()
        for name, value in PUBLISHED.get(model_type, {}).items():
            owner = config if name.startswith(".") else config.get_text_config()
            setattr(owner, name.lstrip("."), value)
    except Exception as error:  # a default may not fit another
        return {"status": "not built", "why": f"{type(error).__name__}: {error}"[:160]}
    whole = verdict_on(getattr(transformers, class_name), config)
    of_text = transformers.AutoModelForCausalLM._model_mapping.get(
        type(config.get_text_config()), None
    )
    if whole["status"] != "not built" or of_text is None or config.get_text_config() is config:
        return whole
    text = verdict_on(of_text, config.get_text_config())
    return whole if text["status"] == "not built" else {**text, "part": "text"}


def verdict_on(model_class: Any, config: Any) -> dict[str, Any]:
    from mmr1.trainer.forward.any_model.sharing import probe

    found = asdict(probe(model_class, config))
    if found["status"] == "padded" and found["why"].startswith(("no small model", "a small model")):
        found["status"] = "not built"
    return found


def _put(queue: Any, model_type: str, class_name: str) -> None:
    os.nice(1)
    queue.put(probed(model_type, class_name))


def in_time(model_type: str, class_name: str, seconds: float) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_put, args=(queue, model_type, class_name))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return {"status": "late", "why": f"not done after {seconds:g} s"}
    return {"status": "died", "why": f"exit {process.exitcode}"} if queue.empty() else queue.get()


def run(out: Path, only: Sequence[str], seconds: float) -> None:
    import transformers  # noqa: F401  # once for all processes

    import mmr1.trainer.forward.any_model.sharing  # noqa: F401

    done = {(row["mapping"], row["type"]) for row in rows(out)}
    with out.open("a") as file:
        for mapping, model_type, class_name in types():
            if ((mapping, model_type) in done and not only) or (only and model_type not in only):
                continue
            found = in_time(model_type, class_name, seconds)
            row = {"mapping": mapping, "type": model_type, "class": class_name, **found}
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(mapping, model_type, found["status"], found.get("logprob_gap"), found["why"])


def rows(out: Path) -> list[dict[str, Any]]:
    """The last row of each type."""
    if not out.exists():
        return []
    read = map(json.loads, out.read_text().splitlines())
    return list({(row["mapping"], row["type"]): row for row in read}.values())


STATUSES = {
    "packed": "packed, and equal to each completion alone",
    "packed text": "the same of its text part; the whole was not built, or asks for pictures",
    "refused": "its tokens see those that follow them: it is refused",
    "padded": "padded: the probe found the packed forward wrong, or the model's code refused it",
    "not built": "not known: the small model was not built, or does not run on a text alone",
    "late": "not known: out of time",
    "died": "not known: its process died",
}


def _status(row: Mapping[str, Any]) -> str:
    return f"{row['status']} text" if row["status"] == "packed" and "part" in row else row["status"]


def table(found: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"| | {' | '.join(MAPPINGS)} |", "|---|---|---|"]
    of = {m: [row for row in found if row["mapping"] == m] for m in MAPPINGS}
    for status, told in STATUSES.items():
        counts = [sum(_status(row) == status for row in of[m]) for m in MAPPINGS]
        if any(counts):
            lines.append(f"| {told} | {counts[0]} of {len(of[MAPPINGS[0]])} "
                         f"| {counts[1]} of {len(of[MAPPINGS[1]])} |")  # fmt: skip
    packed = [row for row in found if row["status"] == "packed"]
    largest, of_gradients = (max(r[f"{k}_gap"] for r in packed) for k in ("logprob", "gradient"))
    lines += ["", f"The largest gap of a packed type is {largest:.1e} "
              "nats, and of its gradients "
              f"{of_gradients:.1e} of the largest."]  # fmt: skip
    for mapping in MAPPINGS:
        packed_here = [row for row in of[mapping] if row["status"] == "packed"]
        names = (f"`{r['type']}`{' (its text part)' if 'part' in r else ''}" for r in packed_here)
        lines += ["", f"Packed, {mapping}: {', '.join(names)}."]
    lines += ["", "| not packed | mapping | why |", "|---|---|---|"]
    for row in sorted(found, key=lambda row: (row["mapping"], row["type"])):
        if row["status"] != "packed":
            why = row["why"].splitlines()[0].replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| `{row['type']}` | {row['mapping']} | {row['status']}: {why} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path, help="JSON lines; types that it has are not run again")
    parser.add_argument("--only", nargs="*", default=(), help="these types, again")
    parser.add_argument("--seconds", type=float, default=120, help="for each type")
    parser.add_argument("--write", action="store_true", help="write the table, run nothing")
    given = parser.parse_args()
    if not given.write:
        run(given.out, given.only, given.seconds)
        print(table(rows(given.out)))
        return
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows(given.out))}\n\n{END}{after}")


if __name__ == "__main__":
    main()
