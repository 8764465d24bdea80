"""The model family and the prepared media that a configuration asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

import torch

from mmr1.config import Config, DataConfig, EnvironmentConfig, ModelConfig
from mmr1.lifetime import start_persistent
from mmr1.logs import report_fault
from mmr1.machine import cores
from mmr1.parallel import spawned
from mmr1.types import MediaRef
from mmr1.vision.families.chat import ChatOptions, read_template
from mmr1.vision.families.family import ModelFamily, is_packed
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache, Medium
from mmr1.vision.videos import check_backend, forget_environment

logger = logging.getLogger(__name__)

CORES_PER_MEDIA_WORKER = 4
"""The others train, verify and feed the engine."""

KINDS = 3
"""On a cluster every medium is prepared by the driver, by an engine and by a rank: each kind has an
equal share of a machine's workers."""

Prepare = Callable[[MediaRef], Medium]

_prepare: Prepare | None = None
"""What a worker process prepares with."""


def family_of(config: Config, tools: Sequence[Mapping[str, Any]] = ()) -> ModelFamily:
    """The processor of ``model.path``, with the chat template and the media sizes of ``data``.

    Args:
        tools: JSON schemas of the tools that prompts speak of.

    Raises:
        ValueError: If the processor cannot be loaded, or its models are not trained like this.
    """
    environment = config.environment
    instructions = None
    if isinstance(environment, EnvironmentConfig):
        instructions = environment.instructions
    stop = config.rollout.sampling.stop
    family = _family(config.model, config.data, tuple(tools), instructions, stop)
    if config.resources.context_parallel_size > 1 and not family.shares_prompts:
        _check_context(config, family)
    return family


def _check_context(config: Config, family: ModelFamily) -> None:
    """Check what is known of a model without its layers."""
    why = ""
    if family.recurrent:
        why = "its layers carry a state from token to token, which a rank does not hand on"
    elif config.model.sharing == "padded":
        why = "with model.sharing=padded each sequence stays whole"
    if why:
        raise ValueError(
            f"resources.context_parallel_size={config.resources.context_parallel_size} and "
            f"model.path '{config.model.path}': {why}; set resources.context_parallel_size=1 "
            "(docs/models.md)"
        )


def _family(
    model: ModelConfig,
    data: DataConfig,
    tools: tuple[Mapping[str, Any], ...] = (),
    instructions: str | None = None,
    stop: tuple[str, ...] = (),
) -> ModelFamily:
    check_backend(data.video.backend)
    template = read_template(data.chat_template)
    chat = ChatOptions(template, data.chat_template_kwargs, tools, instructions, stop)
    options = {
        # By name: the tests record which keys a run reads.
        **{key: getattr(data.video, key) for key in type(data.video).model_fields},
        "image_min_pixels": data.image.min_pixels,
        "image_max_pixels": data.image.max_pixels,
        "image_resize": data.image.resize,
    }
    given = {k: v for k, v in options.items() if v is not None}
    return load_family(model.path, chat, model.trust_remote_code, **given)


def media_cache(family: ModelFamily, config: Config, neighbours: int = 1) -> MediaCache:
    """Prepared media, each made once; in this process's share of ``data.num_workers``.

    Args:
        neighbours: Ranks, or engines, on this machine, if this process is one of them.
    """
    count = media_workers(config, neighbours)
    if count == 0:
        return MediaCache(family.prepare_media)
    load = partial(_load_prepare, config.model, config.data)
    return MediaCache(family.prepare_media, workers=Preparers(load, count))


def checked_media(family: ModelFamily, config: Config) -> MediaCache:
    """Measured media for a process that does not look at them: the driver of a cluster.

    Each is decoded once, to know that it can be, and the pixels are dropped where that was done.
    They are kept of a model whose processor is given whole prompts: none can be read without them.
    """
    if not is_packed(family):
        return media_cache(family, config)
    count = media_workers(config)
    if count == 0:
        return MediaCache(family.check_media)
    load = partial(_load_check, config.model, config.data)
    return MediaCache(family.check_media, workers=Preparers(load, count))


def seen_media(family: ModelFamily, config: Config, media: MediaCache) -> MediaCache:
    """Media with their patches, for a process that looks at a few steps' media.

    Args:
        media: The process's own, :func:`checked_media` on a cluster.
    """
    return MediaCache(family.prepare_media, max_bytes=0) if config.distributed else media


def media_workers(config: Config, neighbours: int = 1) -> int:
    """Processes that prepare media for this one; ``neighbours`` as for :func:`media_cache`.

    Of ``data.num_workers`` on a machine the driver, its engines and its ranks have a third each,
    or one for each process where that is more; none if it is 0.
    """
    of_machine = config.data.num_workers
    if of_machine is None:
        of_machine = cores() // CORES_PER_MEDIA_WORKER
    if not config.distributed:
        return of_machine
    return min(of_machine, max(1, of_machine // (KINDS * neighbours)))


def _load_check(model: ModelConfig, data: DataConfig) -> Prepare:
    """A checker of media for a separate process, which loads it itself."""
    family = _family(model, data)
    assert is_packed(family)
    return family.check_media


def _load_prepare(model: ModelConfig, data: DataConfig) -> Prepare:
    """A preparer of media for a separate process, which loads it itself."""
    return _family(model, data).prepare_media


class Preparers:
    """Processes that decode and prepare media.

    Decoding and cutting into patches scale over processes, not over threads. The processes load the
    processor once, when the first medium is asked for, and end with this process.

    Linux kills one when memory runs out. Others take the place of them all, and what was under way
    is prepared again, one medium after another: so the one that is to blame is known.

    Args:
        load: Module-level function, or a partial of one: makes the function that prepares.
        workers: Processes, at least 1.
    """

    def __init__(self, load: Callable[[], Prepare], workers: int) -> None:
        self._load, self._workers = load, workers
        self._pool = spawned(workers, _begin, (load,))
        self._single: ProcessPoolExecutor | None = None  # of the thread's
        self._thread = ThreadPoolExecutor(1, "media again")
        self._lock = Lock()

    def submit(self, media: MediaRef) -> Future[Medium]:
        """Prepare a medium; the future raises what preparing raised.

        A ValueError tells that the process was killed, again and by this medium.
        """
        result: Future[Medium] = Future()
        with self._lock:
            pool = self._pool
        try:
            # Submitting may start a process, and a rollout thread may end before it.
            prepared = start_persistent(lambda: pool.submit(_run, media))
        except BrokenProcessPool:
            self._repeat(pool, media, result)
            return result
        prepared.add_done_callback(partial(self._done, pool, media, result))
        return result

    def _done(
        self,
        pool: ProcessPoolExecutor,
        media: MediaRef,
        result: Future[Medium],
        prepared: Future[Medium],
    ) -> None:
        if prepared.cancelled():
            result.cancel()
        elif isinstance(prepared.exception(), BrokenProcessPool):
            self._repeat(pool, media, result)
        else:
            _hand_on(prepared, result)

    def _repeat(self, broken: ProcessPoolExecutor, media: MediaRef, result: Future[Medium]) -> None:
        with self._lock:
            if self._pool is broken:
                self._pool = spawned(self._workers, _begin, (self._load,))
                message = "a process that prepares media was killed; others take its place"
                report_fault(logger, "media/worker_replaced", message)
        with suppress(RuntimeError):  # this process ends
            alone = self._thread.submit(self._alone, media)
            alone.add_done_callback(lambda done: _hand_on(done, result))

    def _alone(self, media: MediaRef) -> Medium:
        single = self._single or spawned(1, _begin, (self._load,))
        self._single = single
        try:
            return start_persistent(lambda: single.submit(_run, media)).result()
        except BrokenProcessPool:
            self._single = None
            raise ValueError(
                f"{media}: the process that prepared it was killed, again when it prepared nothing "
                "else; it may need more memory than there is: lower data.image.max_pixels or "
                "data.video.max_frames"
            ) from None


def _hand_on(done: Future[Medium], result: Future[Medium]) -> None:
    if (error := done.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(done.result())


def _begin(load: Callable[[], Prepare]) -> None:
    global _prepare
    torch.set_num_threads(1)
    _prepare = load()
    forget_environment()


def _run(media: MediaRef) -> Medium:
    assert _prepare is not None, "the initializer has run"
    return _prepare(media)
