"""Split, mix and filter prepared datasets: new record files over the same media."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from datasets_prep.finish import write_bytes
from mmr1.data.record import write_records
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.images import image_size


def shares(words: Sequence[str]) -> dict[str, float]:
    """``["train=0.9", "eval=0.1"]`` as a dictionary.

    Raises:
        ValueError: A word is not of that form.
    """
    parsed: dict[str, float] = {}
    for word in words:
        name, _, share = word.rpartition("=")
        try:
            parsed[name] = float(share)
        except ValueError:
            name = ""
        if not name or parsed[name] <= 0:
            raise ValueError(f"'{word}' is not of the form name=share, as in train=0.9")
    return parsed


def split(
    samples: Sequence[Sample], shares: Mapping[str, float], seed: int
) -> dict[str, list[Sample]]:
    """Splits with these shares; samples with the same image go into the same split.

    Raises:
        ValueError: The shares do not add up to 1.
    """
    if abs(sum(shares.values()) - 1) > 1e-6 or min(shares.values()) <= 0:
        raise ValueError(f"the shares {dict(shares)} do not add up to 1")
    groups = _by_picture(samples)
    random.Random(seed).shuffle(groups)
    result: dict[str, list[Sample]] = {name: [] for name in shares}
    for group in groups:
        total = sum(map(len, result.values())) + len(group)
        name = max(shares, key=lambda n: shares[n] * total - len(result[n]))
        result[name].extend(group)
    return result


def _by_picture(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Groups of samples that share media, directly or through other samples."""
    group_of: dict[str, list[Sample]] = {}
    for sample in samples:
        keys = {m.digest() for m in sample.media} or {sample.id}
        merged = [sample]
        for group in {id(g): g for k in keys if (g := group_of.get(k)) is not None}.values():
            merged = [*group, *merged]
        for member in merged:
            for key in {m.digest() for m in member.media} or {member.id}:
                group_of[key] = merged
    return list({id(g): g for g in group_of.values()}.values())


def mix(
    sources: Mapping[str, Sequence[Sample]], shares: Mapping[str, float], count: int, seed: int
) -> list[Sample]:
    """``count`` samples from several datasets by share, without repeats.

    Raises:
        ValueError: A source is too small for its share.
    """
    total = sum(shares.values())
    count_so_far, share = 0, 0.0
    mixed: list[Sample] = []
    for name, samples in sources.items():
        # The cumulated share is rounded, so that the counts of all sources add up to ``count``.
        share += shares[name]
        count_of_source = round(count * share / total) - count_so_far
        count_so_far += count_of_source
        if count_of_source > len(samples):
            raise ValueError(
                f"{name} has {len(samples)} samples; its share needs {count_of_source}"
            )
        for sample in random.Random(f"{seed}/{name}").sample(list(samples), count_of_source):
            mixed.append(
                Sample(
                    f"{Path(name).stem}/{sample.id}", sample.messages, sample.answer, sample.task,
                    sample.source, sample.meta,
                )
            )  # fmt: skip
    random.Random(seed).shuffle(mixed)
    return mixed


def rule(expression: str) -> Callable[[Sample], bool]:
    """A predicate on samples from a jinja expression.

    Its variables are ``id``, ``task``, ``source``, ``answer``, ``question``, ``images``,
    ``videos``, ``width`` and ``height`` (of the first image) and ``meta``.

    Raises:
        ValueError: The expression is not valid, or fails on a sample.
    """
    environment = ImmutableSandboxedEnvironment()
    try:
        holds = environment.compile_expression(expression, undefined_to_none=True)
    except TemplateError as error:
        raise ValueError(f"the rule '{expression}': {error}") from error

    def matches(sample: Sample) -> bool:
        try:
            return bool(holds(**_variables(sample)))
        except (TemplateError, TypeError) as error:
            raise ValueError(f"the rule '{expression}' fails on {sample.id}: {error}") from error

    return matches


def _variables(sample: Sample) -> dict[str, object]:
    images = [m for m in sample.media if m.kind == "image"]
    width, height = (images[0].size or image_size(images[0])) if images else (None, None)
    return {
        "id": sample.id,
        "task": sample.task,
        "source": sample.source,
        "answer": sample.answer,
        "question": sample.question,
        "images": len(images),
        "videos": len(sample.media) - len(images),
        "width": width,
        "height": height,
        "meta": dict(sample.meta),
    }


def save(path: Path, samples: Sequence[Sample]) -> None:
    """Write records; media outside the folder of the new file are linked or copied into it.

    Raises:
        ValueError: The file exists, or its name does not end in ``.jsonl``.
    """
    if path.suffix != ".jsonl":
        raise ValueError(f"{path}: records are JSON Lines; name the output {path.name}.jsonl")
    if path.exists():
        raise ValueError(f"{path} exists; remove it or name another output")
    write_records(path, [_beside(sample, path.parent) for sample in samples])


def _beside(sample: Sample, folder: Path) -> Sample:
    def stored(ref: MediaRef) -> MediaRef:
        home = folder.resolve()
        if ref.path is None or ref.path.resolve().is_relative_to(home):
            return ref
        digest = hashlib.sha256(ref.read()).hexdigest()
        path = folder / "media" / digest[:2] / f"{digest[:32]}{ref.path.suffix}"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(ref.path, path)
            except OSError:  # another file system, or one without hard links
                write_bytes(path, ref.read())
        return MediaRef(ref.kind, path, None, ref.size, ref.options)

    messages = tuple(
        Message(m.role, tuple(p if isinstance(p, TextPart) else stored(p) for p in m.parts))
        for m in sample.messages
    )
    return Sample(sample.id, messages, sample.answer, sample.task, sample.source, sample.meta)
