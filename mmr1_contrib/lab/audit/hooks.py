"""Writers of step files for other projects, as lines to paste before their trainer starts.

They wrap the function in which each trainer computes a loss, and write what it was given. One file
is written for each call and rank; gather what a test needs by running on one rank with one
micro-batch a step.
"""

from __future__ import annotations

from collections.abc import Mapping

from mmr1_contrib.lab.audit.step_file import SCHEMA

_WRITER = f'''import json, torch
from safetensors.torch import save_file

def write_step(path, prompt, prompt_mask, ids, real, mask, others):  # padded: [B, P], [B, R]
    seen, real = prompt_mask.bool(), real.bool()
    flat = lambda x: x.expand_as(real)[real]
    tensors = {{"prompt/ids": prompt[seen].int(), "prompt/length": seen.sum(1),
               "row/prompt": torch.arange(len(ids)), "row/length": real.sum(1),
               "token/ids": flat(ids).int(), "token/mask": flat(mask).byte()}}
    others = {{k: v for k, v in others.items() if v is not None}}
    tensors |= {{k: flat(v).float() if k[:5] == "token" else v for k, v in others.items()}}
    save_file({{k: v.detach().cpu().contiguous() for k, v in tensors.items()}}, path,
              {{"step": json.dumps({{"schema": "{SCHEMA}", "writer": __name__}})}})

def media(pixels, grid, counts):  # what the processor made of the images
    return {{}} if pixels is None else {{
        "media/grid": grid.int(), "prompt/media": torch.tensor(counts).int(),
        "media/patch_mean": pixels.float().unflatten(1, (3, -1)).mean(2)}}
'''

_TRL = """
from trl import GRPOTrainer as T
_rewards, _score, _loss = T._calculate_rewards, T._generate_and_score_completions, T._compute_loss
def rewards(self, *a):
    self.each = _rewards(self, *a)
    return self.each
def score(self, inputs):
    out = _score(self, inputs)
    return {**out, "rewards": (self.each * self.reward_weights.to(self.each)).nansum(1)}
def compute_loss(self, model, x):
    loss, mask = _loss(self, model, x), x["completion_mask"]
    write_step(f"trl_{self.state.global_step:06d}_{self._step}.safetensors", x["prompt_ids"],
               x["prompt_mask"], x["completion_ids"], mask, mask * x.get("tool_mask", 1), {
        "token/advantage": x["advantages"].view(len(mask), -1), "row/reward": x["rewards"],
        "token/old_logp": x.get("old_per_token_logps"), "update/loss": loss.view(1),
        "token/ref_logp": x.get("ref_per_token_logps"),
        "token/rollout_logp": x.get("sampling_per_token_logps"),
        **media(x.get("pixel_values"), x.get("image_grid_thw"), x.get("num_images"))})
    return loss
T._calculate_rewards, T._generate_and_score_completions = rewards, score
T._compute_loss = compute_loss
"""

_VERL = """
from verl.workers.actor.dp_actor import DataParallelPPOActor as Actor
_update, numbers = Actor.update_policy, iter(range(1, 10**9))
def update_policy(self, data):
    b, more = data.batch, data.non_tensor_batch.get("multi_modal_inputs")
    r, seen = b["responses"].shape[1], b["attention_mask"]
    write_step(f"verl_{next(numbers):06d}_{torch.distributed.get_rank()}.safetensors",
               b["input_ids"][:, :-r], seen[:, :-r], b["responses"], seen[:, -r:],
               b["response_mask"], {
        "token/advantage": b["advantages"], "token/old_logp": b["old_log_probs"],
        "token/ref_logp": b.get("REFERENCE"), "token/rollout_logp": b.get("rollout_log_probs"),
        "row/reward": b["token_level_scores"].sum(1) if "token_level_scores" in b else None,
        **(media(torch.cat([m["pixel_values"] for m in more]),
                 torch.cat([m["image_grid_thw"] for m in more]),
                 [len(m["image_grid_thw"]) for m in more]) if more is not None else {})})
    return _update(self, data)
Actor.update_policy = update_policy
"""

_OPENRLHF = """
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer as Trainer
_step, numbers = Trainer.training_step, iter(range(1, 10**9))
def training_step(self, experience, *a, **k):
    e, shown = experience, [m for m in getattr(experience, "mm_train_inputs", None) or [] if m]
    whole = e.sequences.shape[1]  # what is of actions ends with the sequence
    at = lambda x: None if x is None else torch.nn.functional.pad(x, (whole - x.shape[1], 0))
    mask, seen = at(e.action_mask), e.attention_mask.bool()
    real = seen & (mask.cumsum(1) > 0)
    write_step(f"openrlhf_{next(numbers):06d}_{torch.distributed.get_rank()}.safetensors",
               e.sequences, seen & ~real, e.sequences, real, mask, {
        "token/advantage": at(e.advantages), "token/old_logp": at(e.action_log_probs),
        "token/ref_logp": at(e.base_action_log_probs), "row/reward": e.rewards,
        "token/rollout_logp": at(e.rollout_log_probs),
        **(media(torch.cat([m["pixel_values"] for m in shown]),
                 torch.cat([m["image_grid_thw"] for m in shown]),
                 [len(m["image_grid_thw"]) for m in shown]) if shown else {})})
    return _step(self, experience, *a, **k)
Trainer.training_step = training_step
"""

HOOKS: Mapping[str, str] = {
    "trl": _WRITER + _TRL,
    "verl": _WRITER + _VERL.replace("REFERENCE", "ref_log_prob"),
    "easyr1": _WRITER + _VERL.replace("REFERENCE", "ref_log_probs"),
    "openrlhf": _WRITER + _OPENRLHF,
}
"""The lines by project. That of TRL was run inside TRL 1.16; the others were written against the
projects' public sources and never run."""
