"""The table of combinations: each row fires for a setting of its own, and for no preset."""

from __future__ import annotations

import pytest

from mmr1.algorithms import advantage, loss
from mmr1.config.checks import REFUSED, WARNED
from mmr1.config.file import config_from, load

PROCESS = ["algorithm=process_grpo", "algorithm.advantage.step_rewards=a.py:f"]
STREAMING = ["rollout.max_off_policy_steps=1", "rollout.queue.at_new_weights=continue"]
TOOLS = "environment.tools=[zoom]"
NOISE = ["rollout.views.view=noise", "rollout.views.strength=0.5"]
REPLAY = "algorithm.filter_groups=replay"
BEST = "trainer.checkpoints.metric_for_best_model=eval"
VALIDATED = [
    "trainer.validation.data=x",
    "trainer.validation.steps=2",
    "trainer.checkpoints.save_steps=4",
]
SERVER = [
    "algorithm.kl.coef=1",
    "algorithm.kl.reference.type=server",
    "algorithm.kl.reference.url=http://a",
]
MOVING = ["algorithm.kl.coef=1", "algorithm.kl.reference.type=moving"]

FIRES = [
    (["trainer.step_files=false"], "sft"),
    (["data.curriculum.function=math"], "sft"),
    (["trainer.validation.data=x", "trainer.validation.steps=2"], "sft"),
    (["resources.engines=2"], "sft"),
    (["trainer.log_completions_steps=2"], "sft"),
    (["trainer.vision_use_steps=2"], "sft"),
    (["rollout.engine=hf", "rollout.max_restarts=1"], "train"),
    (["rollout.engine=hf", "rollout.timeout_s=60"], "train"),
    (["rollout.queue.kv_cache=keep"], "train"),
    (["rollout.queue.window=2"], "train"),
    (["resources.collective_timeout_s=60"], "sft"),
    (
        [
            "rollout.engine=hf",
            "algorithm.rollout_correction.importance_sampling.threshold=3",
        ],
        "train",
    ),
    (["algorithm.ppo_mini_batch_size=5"], "train"),
    (
        ["algorithm.ptx.data=x", "algorithm.ptx.batch_size=1", "algorithm.ppo_mini_batch_size=8"],
        "train",
    ),
    (["resources.ranks=2", "resources.engines=3", "rollout.engine=vllm_colocate"], "train"),
    (["rollout.engine=vllm_colocate", "rollout.engine.tensor_parallel_size=2"], "train"),
    (["resources.reward_ranks=2"], "train"),
    (["algorithm=ppo", "algorithm.advantage.critic.warmup_steps=100"], "train"),
    ([*VALIDATED[:2], "trainer.checkpoints.save_steps=5", f"{BEST}/greedy"], "train"),
    ([*VALIDATED, f"{BEST}/sampled", "eval.sampled=null"], "train"),
    (["rollout.n=1"], "train"),
    (["data.curriculum.function=nope"], "train"),
    (["algorithm=ppo", "algorithm.loss=gspo"], "train"),
    (["algorithm.ptx.data=x", "algorithm.ptx.loss=distillation"], "train"),
    ([*SERVER, "rollout.temperature=0.7"], "train"),
    ([*SERVER, "rollout.top_p=0.9"], "train"),
    ([REPLAY, "algorithm.advantage.normalize_rewards=true"], "train"),
    ([REPLAY, "algorithm.rollout_correction.importance_sampling=null"], "train"),
    (["algorithm=dapo", "algorithm.filter_groups.keep_surplus=true"], "train"),
    (["rollout.engine=hf", "rollout.max_off_policy_steps=1"], "train"),
    (["rollout.engine=vllm_colocate", "rollout.max_off_policy_steps=1"], "train"),
    (["rollout.queue.at_new_weights=continue"], "train"),
    ([*STREAMING, "rollout.queue.window=3", "data.train_batch_size=1"], "train"),
    ([*STREAMING, "full_determinism=true"], "train"),
    ([*STREAMING, TOOLS], "train"),
    ([*STREAMING, "model.lora.rank=4", "model.lora.merge=false"], "train"),
    ([*STREAMING, "algorithm=dapo", "algorithm.filter_groups.gen_batch_size=8"], "train"),
    ([*STREAMING, *NOISE], "train"),
    ([*VALIDATED, "rollout.engine=vllm_colocate", "eval.vision_use=true"], "train"),
    ([*VALIDATED, "resources.engines=2", "eval.vision_use=true"], "eval"),
    (["rewards.functions={math: 1, temporal_contrast: {options: {of: math}}}"], "train"),
    ([*NOISE, "rollout.views.loss=own", "algorithm=ppo"], "train"),
    ([*STREAMING, "rewards.functions={own: {use: 'f.py:g', call: batch}}"], "train"),
    (
        [
            "model.lora.rank=4",
            *MOVING,
            "algorithm.kl.reference.sync_steps=5",
            "algorithm.kl.reference.mixup_alpha=0.5",
        ],
        "train",
    ),
    (["model.lora.rank=4", "optimizer.lr_of_parts.language_model=0"], "sft"),
    (["model.freeze_vision_tower=true", "optimizer.lr_of_parts.vision_tower=0"], "sft"),
    (["model.lora.merge=false", "rollout.engine=hf"], "train"),
    ([TOOLS, *PROCESS], "train"),
    ([TOOLS, REPLAY], "train"),
    ([TOOLS, *NOISE], "train"),
    (["algorithm.router_replay=R3", TOOLS], "train"),
    (["algorithm.router_replay=R3", REPLAY], "train"),
    (["algorithm.router_replay=compare", *NOISE], "train"),
    (
        [
            "algorithm.router_replay=R3",
            "resources.context_parallel_size=2",
            "resources.ranks=2",
            "rollout.engine=vllm",
        ],
        "train",
    ),
    ([TOOLS, "rollout.stop=[x]"], "train"),
    (["rollout.min_p=0.1", "rollout.engine.engine_kwargs.spec_method=ngram"], "train"),
]
WARNS = [
    (["trainer.validation.data=x"], "sft"),
    (["eval.limit=20"], "train"),
    (["trainer.validation.data=x", "eval.prompt=direct"], "train"),
    (["algorithm.loss.clip_ratio_high=0.3"], "train"),
    (["algorithm.loss.agg_scope=rollout"], "train"),
    (["algorithm.kl.coef=0.1", "algorithm.kl.estimator=k1"], "train"),
    (["eval.sampled.best_of=math"], "eval"),
    (["environment={type: tools, tools: [zoom], sandbox: null}"], "train"),
]


def test_each_row_has_a_setting():
    assert (len(FIRES), len(WARNS)) == (len(REFUSED), len(WARNED))


@pytest.mark.parametrize(("row", "setting"), zip(REFUSED, FIRES, strict=False))
def test_a_row_fires(row, setting):
    overrides, command = setting
    with pytest.raises(ValueError, match=r".") as error:
        config_from({"model": {"path": "m"}}, overrides, command)
    (line,) = [line for line in str(error.value).splitlines() if row.why in line]
    for key in row.keys[:1]:
        assert key in line


@pytest.mark.parametrize(("row", "setting"), zip(WARNED, WARNS, strict=False))
def test_a_row_warns(row, setting, tmp_path):
    overrides, command = setting
    path = tmp_path / "run.yaml"
    path.write_text("model: {path: m}")
    (warning,) = load(path, overrides, command).warnings
    assert row.why in warning


NEEDS = [
    pytest.param(part, need, id=f"{part.name}-{number}")
    for kind in (loss, advantage)
    for part in kind.parts.values()
    for number, need in enumerate(part.section.needs)
]


@pytest.mark.parametrize(("part", "need"), NEEDS)
def test_overrides_break_each_need(part, need, tmp_path):
    """Its own overrides break it, and the message names the part's key."""
    path = tmp_path / "run.yaml"
    path.write_text("model: {path: m}")
    overrides = [f"{part.key}.type={part.name}", *need.broken_by]
    if need.warns:
        said = " ".join(load(path, overrides, need.command).warnings)
    else:
        with pytest.raises(ValueError, match=r".") as error:
            load(path, overrides, need.command)
        said = str(error.value)
    (line,) = [line for line in said.splitlines() if need.why in line]
    assert need.keys[0] in line


def test_a_message_has_the_values_without_credentials():
    overrides = ["algorithm.ppo_mini_batch_size=5", "data.train_batch_size=8", "rollout.n=1"]
    with pytest.raises(ValueError, match=r".") as error:
        config_from({"model": {"path": "m"}}, overrides)
    first, second = str(error.value).splitlines()
    assert "algorithm.ppo_mini_batch_size=5, data.train_batch_size=8: the first does not" in first
    assert "rollout.n=1, algorithm.advantage.type=grpo: a group of one has no baseline" in second


def test_a_row_holds_for_its_commands_only():
    one = {"model": {"path": "m"}, "rollout": {"n": 1}}
    assert config_from(one, command="eval").rollout.n == 1
