"""What the process that runs the loop does itself in a step: CPU seconds and memory.

    python scripts/bench/driver.py --completions 65536 --tokens 500 --ranks 683
    python scripts/bench/driver.py --completions 4096 --machines 2

Engines and ranks are left out: completions are made up, and what ranks would be sent is pickled and
thrown away. A completion is words and an answer in the usual format; half of them are right. CPU
seconds are those of this process and of the verifier's. The first step touches the memory that the
steps after it use again.

With ``--machines`` only rewards are computed: by this process and its workers, and by those of
machines that are pretended on this one (Ray nodes). Seconds of this process are shown apart from
those of all others, which on a cluster would be spent on the other machines.
"""

from __future__ import annotations

import argparse
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import common
import numpy as np
import psutil

from mmr1.config import Config
from mmr1.rewards import build_composite_reward
from mmr1.runtime import heap_frozen, set_up_torch
from mmr1.trainer.algorithms import build_algorithm
from mmr1.trainer.distributed.ray_policy import parts_of_update
from mmr1.trainer.distributed.scorers import scored_where_sampled
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.types import Completion, MediaRef, Message, Prompt, RolloutGroup, Sample, TextPart
from mmr1.vision.prepare import MediaCache, PreparedMedia

PROMPT_TOKENS = 1124
VOCABULARY = 150_000
STEPS = 2
PLUGIN = """
def reward(completion: str, answer) -> float:
    return float(str(answer) in completion) + len(set(completion.split())) / 1000
"""
Answers = Callable[[int], tuple[str, tuple[str, str]]]
"""The gold answer of a prompt by its number, and a right and a wrong one."""


def main() -> None:
    parser = common.parser(__doc__ or "")
    parser.add_argument("--completions", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=500, help="of a completion")
    parser.add_argument("--n", type=int, default=8, help="completions of a prompt")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--machines", type=int, default=0, help="that compute rewards")
    arguments = parser.parse_args()
    config = Config.model_validate(
        {
            "model": {"path": "none"},
            "rollout": {"n": arguments.n},
            "rewards": {"functions": {"format": {}, "math": {}}},
        }
    )
    set_up_torch(seed=0, threads=1)
    with heap_frozen():
        if arguments.machines:
            measure_rewards(arguments, config)
            return
        groups = made_up(arguments.completions // arguments.n, arguments.n, arguments.tokens)
        made = common.peak_rss_mib()
        rows = [step(groups, config, arguments.ranks) for _ in range(STEPS)]
    known = {"completions": arguments.completions, "completions, MiB": f"{made:.0f}"}
    common.table([{"step": number, **known, **row} for number, row in enumerate(rows, 1)])


def step(groups: list[RolloutGroup], config: Config, ranks: int) -> dict[str, str]:
    algorithm = build_algorithm(config.algorithm)
    seconds: dict[str, float] = {}
    with counted(seconds, "rewards"), build_composite_reward(config.rewards) as rewards:
        scored = RewardManager(rewards, MediaCache(not_there), 1.0).score(groups)
    with counted(seconds, "experience"):
        # Without a reference: its log-probs come from the ranks.
        batch = build_experience(scored, algorithm, config.algorithm, Models(None))  # type: ignore[arg-type]
    with counted(seconds, "shares"):
        parts = parts_of_update(batch, lambda prompt: len(prompt.token_ids), ranks)
    with counted(seconds, "pickled"):
        sent = sum(len(pickle.dumps(part, protocol=5)) for part in parts)
    return {
        **{name: f"{value:.1f}" for name, value in seconds.items()},
        "sent, MiB": f"{sent / 2**20:.0f}",
        "peak, MiB": f"{common.peak_rss_mib():.0f}",
    }


def integers(number: int) -> tuple[str, tuple[str, str]]:
    return str(number + 1), (str(number + 1), str(number + 2))


def roots(number: int) -> tuple[str, tuple[str, str]]:
    """For computer algebra."""
    return rf"{number}+\sqrt{{5}}", (rf"\sqrt{{5}}+{number}", rf"\sqrt{{6}}+{number}")


def not_there(medium: MediaRef) -> PreparedMedia:
    raise ValueError(f"the prompts have no media, and {medium} was asked for")


def measure_rewards(arguments: argparse.Namespace, config: Config) -> None:
    """Seconds for rewards, of this process and of the others, wherever these are."""
    with tempfile.TemporaryDirectory() as folder, machines(arguments.machines) as others:
        plugin = Path(folder) / "plugin.py"
        plugin.write_text(PLUGIN)
        cases: list[tuple[str, dict[str, Any], Answers]] = [
            ("format, integer", {"format": {}, "math": {}}, integers),
            ("format, algebra", {"format": {}, "math": {}}, roots),
            ("plugin", {"plugin": {"use": f"{plugin}:reward"}}, integers),
        ]
        rows = []
        for name, functions, answers in cases:
            groups = made_up(
                arguments.completions // arguments.n, arguments.n, arguments.tokens, answers
            )
            section = {"functions": functions, "timeout_s": 20.0}
            of_case = Config.model_validate({**config.model_dump(), "rewards": section})
            for engines in ([], others):
                place = f"{arguments.machines} machines" if engines else "here"
                used = rewards_in(of_case, groups, engines)
                rows.append({"completions": arguments.completions, "rewards": name, "in": place})
                rows[-1].update({key: f"{value:.2f}" for key, value in used.items()})
    common.table(rows)


def rewards_in(config: Config, groups: list[RolloutGroup], engines: list[str]) -> dict[str, float]:
    """Seconds that the rewards take, their workers being there already."""
    with ExitStack() as stack:
        composite = stack.enter_context(build_composite_reward(config.rewards))
        stack.enter_context(scored_where_sampled(composite, config, engines))
        manager = RewardManager(composite, MediaCache(not_there), 1.0)
        manager.score(made_up(8, 2, 10, roots))  # starts what is not there yet
        wall, own, all_others = time.perf_counter(), time.process_time(), of_children()
        manager.score(groups)
        return {
            "this process, CPU s": time.process_time() - own,
            "others, CPU s": sum(s - all_others.get(p, 0.0) for p, s in of_children().items()),
            "wall s": time.perf_counter() - wall,
        }


def of_children() -> dict[psutil.Process, float]:
    """CPU seconds of each process that this one has started, or they."""
    seconds = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            seconds[process] = sum(process.cpu_times()[:2])
    return seconds


@contextmanager
def machines(count: int) -> Iterator[list[str]]:
    """Ray nodes on this machine, none of which is that of this process."""
    import ray
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 512 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    try:
        for _ in range(count):
            cluster.add_node(**small)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        own = ray.get_runtime_context().get_node_id()
        yield [node["NodeID"] for node in ray.nodes() if node["NodeID"] != own]
    finally:
        ray.shutdown()
        cluster.shutdown()


def made_up(
    prompts: int, n: int, tokens: int, answers: Answers | None = None
) -> list[RolloutGroup]:
    rng = np.random.default_rng(0)
    words = " ".join(f"word{i}" for i in range(tokens // 3))
    groups = []
    for number in range(prompts):
        text = TextPart(f"What is {number} and 1?")
        gold, tried = (answers or integers)(number)
        sample = Sample(str(number), (Message("user", (text,)),), gold)
        ids = tuple(rng.integers(VOCABULARY, size=PROMPT_TOKENS).tolist())
        completions = []
        for index in range(n):
            completions.append(
                Completion(
                    rng.integers(VOCABULARY, size=tokens),
                    rng.normal(size=tokens).astype(np.float32),
                    f"<think>{words}</think><answer>{tried[index % 2]}</answer>",
                    False,
                    0,
                )
            )
        groups.append(RolloutGroup(Prompt(sample, text.text, ids), tuple(completions)))
    return groups


@contextmanager
def counted(seconds: dict[str, float], name: str) -> Iterator[None]:
    """CPU seconds of this process and of children that have ended."""
    before = sum(os.times()[:4])
    yield
    seconds[f"{name}, CPU s"] = sum(os.times()[:4]) - before


if __name__ == "__main__":
    main()
