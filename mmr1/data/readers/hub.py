"""Datasets of the Hugging Face Hub, by name or saved on disk, with their media still encoded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmr1.data.readers.classes import Located, NoSuchDatasetError, classes_of, with_names

REACH_S = 5.0
"""Seconds that the hub has to answer at all. Without an answer only its cache is asked."""


def is_saved(folder: Path) -> bool:
    """True if ``datasets`` saved this folder."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def hub_rows(name: str, split: str | None) -> Iterator[Located]:
    """The rows of a dataset, each with its location. See :func:`hub_dataset`."""
    dataset, where = hub_dataset(name, split)
    classes = classes_of(dataset.features)
    for number, row in enumerate(dataset):
        yield f"{where}[{number}]", with_names(row, classes)


def hub_dataset(name: str, split: str | None) -> tuple[Any, str]:
    """A dataset, mapped into memory with its media encoded, and what it is called in messages.

    Args:
        name: A folder saved by ``datasets``, or a name on the hub.
        split: ``train`` if None, or the only split.

    Raises:
        NoSuchDatasetError: The hub has none, or cannot be reached.
        ValueError: If the split does not exist, or what was saved is broken.
    """
    import datasets

    dataset = _saved(name, split) if is_saved(Path(name)) else _from_hub(name, split or "train")
    for column, feature in dataset.features.items():
        if (encoded := _undecoded(feature, datasets)) != feature:
            dataset = dataset.cast_column(column, encoded)
    return dataset, f"{name}@{split}" if split else name


def _saved(name: str, split: str | None) -> Any:
    import datasets

    try:
        dataset: Any = datasets.load_from_disk(name)
    except Exception as error:  # of pyarrow, of the file system, of datasets itself
        raise ValueError(f"{name}: cannot be read as a dataset: {_line(error)}") from error
    if not isinstance(dataset, datasets.DatasetDict):
        if split is not None:
            raise ValueError(f"{name} has no splits; leave out '@{split}'")
        return dataset
    splits = list(dataset)
    chosen = split or ("train" if "train" in splits else splits[0])
    if chosen not in splits or (split is None and chosen != "train" and len(splits) > 1):
        raise ValueError(
            f"{name} has the splits {', '.join(splits)}, not '{split or 'train'}'; "
            f"name one, as {name}@{splits[0]}"
        )
    return dataset[chosen]


def _from_hub(name: str, split: str) -> Any:
    import datasets

    here = Path(name).exists()
    reachable = here or _is_reachable()
    if not reachable:  # it would be asked six times, with half a minute of pauses between
        _only_cache()
    try:
        return datasets.load_dataset(name, split=split)
    except Exception as error:  # datasets raises its own, its loaders' and the network's errors
        unreachable = "" if reachable else "; the hub cannot be reached"
        kind = ValueError if here else NoSuchDatasetError
        raise kind(
            f"'{name}' is neither a file nor a folder nor a dataset of the hub: "
            f"{_line(error)}{unreachable}"
        ) from error


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error) else type(error).__name__


def _is_reachable() -> bool:
    import httpx
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        httpx.head(constants.ENDPOINT, timeout=REACH_S)
    except httpx.HTTPError:
        return False
    return True


def _only_cache() -> None:
    import datasets
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True
    datasets.config.HF_HUB_OFFLINE = True


def _undecoded(feature: Any, datasets: Any) -> Any:
    """The same feature with images, videos and sound left encoded, wherever they are nested."""
    if isinstance(feature, datasets.Image):
        return datasets.Image(decode=False)
    if isinstance(feature, datasets.Video):
        return datasets.Video(decode=False)
    if isinstance(feature, datasets.Audio):
        return datasets.Audio(decode=False)
    if isinstance(feature, dict):
        return {name: _undecoded(inner, datasets) for name, inner in feature.items()}
    if isinstance(feature, datasets.List | datasets.LargeList):
        inner = _undecoded(feature.feature, datasets)
        return feature if inner == feature.feature else type(feature)(inner)
    return feature
