"""Which prompts the parity check reads; ``tests/rollout`` has the check itself, on real engines."""

from __future__ import annotations

from mmr1.trainer.sampling.parity import first_of_each_kind
from mmr1.types import MediaRef, Message, Sample, TextPart


def sample(name: str, *kinds: str) -> Sample:
    media = [MediaRef(kind, data=b"x") for kind in kinds]
    return Sample(name, (Message("user", (*media, TextPart("?"))),))


def test_a_prompt_of_every_kind():
    """A video as the fifth kind must be checked too; one that cannot be decoded is passed over."""
    train = [sample("t"), sample("i", "image"), sample("again", "image")]
    more = [sample(f"{n} images", *["image"] * n) for n in range(2, 6)]
    more += [sample("bad", "video"), sample("v", "video"), sample("mixed", "image", "video")]
    kinds = first_of_each_kind(
        {"train": train, "more": more}, lambda dataset, s: (dataset, s.id) != ("more", "bad")
    )
    names = ["t", "i", "2 images", "3 images", "4 images", "5 images", "v", "mixed"]
    assert [s.id for s in kinds.values()] == names
    assert list(kinds) == [tuple(m.kind for m in s.media) for s in kinds.values()]
