"""Rewards on the machines of the engines: as here, also when a machine is lost."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from mmr1.config import Config, RewardFunctionConfig, RewardsConfig
from mmr1.evaluation.benchmarks import run_evaluations
from mmr1.rewards import CompositeReward, RewardItem, build_composite_reward
from mmr1.rewards.elsewhere import stretches
from mmr1.trainer.distributed import scorers as distributed_scorers
from mmr1.trainer.distributed.scorers import scored_where_sampled
from mmr1.trainer.offline.iterative_dpo import run_iterative_dpo
from mmr1.trainer.train import run_training
from mmr1.types import Reward, Status
from tests.faults import faults_told
from tests.rewards.helpers import item, sample, think, with_image
from tests.trainer.distributed.test_ray import assert_close
from tests.trainer.distributed.test_ray import config as config_of_run
from tests.trainer.distributed.test_ray_offline import assert_same
from tests.trainer.distributed.test_ray_offline import config_of as offline_config

ray = pytest.importorskip("ray", reason="Ray is not installed")

PLUGIN = """
import os, time
from mmr1.types import Reward

def each(completion, answer, **sample):
    if "raise" in completion:
        raise KeyError("as it was asked to")
    if "hang" in completion:
        time.sleep(60)
    return Reward(len(completion) / 100, components={"zygote": os.getppid()})

def slow(completion, answer, **sample):
    time.sleep(0.2)
    return Reward(len(completion) / 100, components={"zygote": os.getppid()})

def plain(completion, answer):
    return len(completion) / 100

def of_run(completion, answer, secret):
    try:
        open(secret).close()
    except PermissionError:
        pass
    else:
        raise RuntimeError("a file of the working folder is open to it")
    return 100.0 * ("MMR1_BONUS" in os.environ) + time.localtime(0).tm_hour

calls = 0

def counted(completions, **columns):
    global calls
    calls += 1
    return [calls] * len(completions)

def together(completions, **columns):
    longest = max(map(len, completions))  # of all items of the call
    return [len(completion) / longest for completion in completions]
"""
TEXTS = [think("1/2"), think(r"\\frac{2}{4}"), "no answer", think("7") + " raise", think("8") * 2]


SMALL = {"num_cpus": 1, "object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args=SMALL)
    made.add_node(**{**SMALL, "num_cpus": 2})
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def machines(cluster) -> list[str]:
    """Two machines of a cluster, by their ids; the first is the driver's."""
    own = ray.get_runtime_context().get_node_id()
    return sorted((n["NodeID"] for n in ray.nodes()), key=lambda node: node != own)


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "plugin.py"
    path.write_text(PLUGIN)
    return path


def rewards(**functions: dict[str, Any]) -> RewardsConfig:
    made = {name: RewardFunctionConfig(**function) for name, function in functions.items()}
    return RewardsConfig(functions=made, workers=1, timeout_s=2.0)


def items(groups: int, texts: Sequence[str] = TEXTS) -> list[RewardItem]:
    """Completions of so many prompts."""
    return [
        replace(item(text, "1/2", meta={"n": number}), group=number, token_ids=range(len(text)))
        for number in range(groups)
        for text in texts
    ]


def places(scored: Sequence[Reward]) -> Counter[float]:
    """How many items each pool of a plugin has scored, by its zygote."""
    found = (value for r in scored for name, value in r.components.items() if "zygote" in name)
    return Counter(value for value in found if value is not None)


def without_places(scored: Sequence[Reward]) -> list[Reward]:
    return [
        replace(r, components={n: v for n, v in r.components.items() if "zygote" not in n})
        for r in scored
    ]


@contextmanager
def elsewhere(composite: CompositeReward, machines: Sequence[str]) -> Iterator[Any]:
    """Scored on these machines, one for each engine."""
    config = Config(model={"path": "none"}, resources={"start_timeout_s": 60})
    with scored_where_sampled(composite, config, machines):
        yield composite._others


def scorers() -> list[psutil.Process]:
    family = psutil.Process().children(recursive=True)
    return sorted((p for p in family if "Scorer" in p.name()), key=lambda p: p.create_time())


def test_rewards_are_those_of_one_machine(machines, plugin):
    by_length = {"use": "length_cosine", "options": {"max_length": 10, "of": "math"}}
    config = rewards(
        format={},
        math={"gate": 0.1},
        length=by_length,
        each={"use": f"{plugin}:each"},
        together={"use": f"{plugin}:together", "call": "batch"},
        of_together={**by_length, "options": {"max_length": 10, "of": "together"}},
        here={"use": f"{plugin}:plain", "isolated": False},
        of_here={**by_length, "options": {"max_length": 10, "of": "here"}},
    )
    asked = items(6, [*TEXTS, think("0.5") + " raise"])
    asked[7] = replace(asked[7], completion=think("1/2") + " hang")
    with build_composite_reward(config) as composite:
        assert [(s.names, s.movable, s.whole) for s in stretches(composite._functions)] == [
            (["format", "math", "length", "each"], True, False),
            (["together"], True, True),
            (["of_together", "here", "of_here"], False, False),
        ]
        alone = composite.score(asked)
        with elsewhere(composite, machines), faults_told() as told:
            there = composite.score(asked)
        assert psutil.wait_procs(scorers(), timeout=30)[1] == []
        assert places(there).keys().isdisjoint(places(alone))
        assert len(places(there)) == 2
    assert without_places(there) == without_places(alone)
    of_status = Counter(r.status for r in there)
    assert (of_status[Status.TIMEOUT], of_status[Status.ERROR]) == (1, 6)
    assert told.counts() == {"verifier/replaced": 1}


def test_each_machine_gets_whole_groups_in_proportion_to_its_engines(machines, plugin, monkeypatch):
    monkeypatch.chdir(plugin.parent)  # Ray was started elsewhere
    config = rewards(each={"use": "plugin.py:each"})
    with (
        build_composite_reward(config) as composite,
        elsewhere(composite, [machines[1], machines[0], machines[1]]),
    ):
        scored = composite.score(items(9, ["one", "two"]))
        assert [len(places(scored[first : first + 2])) for first in range(0, 18, 2)] == [1] * 9
        assert sorted(places(scored).values()) == [6, 12]
        assert len(places(composite.score(items(1, ["one"])))) == 1


def test_the_jobs_of_a_lost_machine_are_done_by_another_and_then_here(machines, plugin):
    asked = items(4, TEXTS[:3])
    config = rewards(slow={"use": f"{plugin}:slow"}, exact={})
    with build_composite_reward(config) as composite:
        alone = composite.score(asked)
        with elsewhere(composite, machines), faults_told() as told:
            first, second = scorers()
            killing = threading.Timer(0.5, first.kill)  # in the middle of 6 times 0.2 s
            killing.start()
            one_left = composite.score(asked)
            killing.join()
            assert told.counts() == {"scorer/lost": 1}
            assert "no longer scores" in told.faults[0][2]
            assert "1 others do" in told.faults[0][2]
            assert len(places(one_left)) == 1
            second.kill()
            none_left = composite.score(asked)
            assert told.counts() == {"scorer/lost": 2}
            assert places(none_left) == places(alone)
        assert without_places(one_left) == without_places(alone) == without_places(none_left)
        assert all(r.value is not None for r in one_left)


def test_what_is_scored_when_a_run_ends_is_not_told_as_a_loss(machines, plugin):
    asked = items(4, TEXTS[:3])
    with (
        build_composite_reward(rewards(slow={"use": f"{plugin}:slow"})) as composite,
        ThreadPoolExecutor(1) as thread,
        faults_told() as told,
    ):
        with elsewhere(composite, machines):
            scoring = thread.submit(composite.score, asked)
            time.sleep(0.5)  # of 6 times 0.2 s
        with pytest.raises(RuntimeError, match="closed"):
            scoring.result(timeout=60)
        assert not told.counts()


@pytest.mark.slow
def test_a_machine_that_is_taken_away_is_lost_and_one_that_is_gone_is_left_out(
    cluster, machines, plugin
):
    node = cluster.add_node(**SMALL)
    cluster.wait_for_nodes()
    (added,) = {n["NodeID"] for n in ray.nodes() if n["Alive"]} - set(machines)
    asked = items(4, TEXTS[:3])
    with build_composite_reward(rewards(slow={"use": f"{plugin}:slow"})) as composite:
        alone = composite.score(asked)
        with elsewhere(composite, [machines[0], added]), faults_told() as told:
            taking = threading.Timer(0.5, cluster.remove_node, (node, False))
            taking.start()
            taken = composite.score(asked)
            taking.join()
        assert told.counts() == {"scorer/lost": 1}
        for gone in (added, "e" * len(added)):  # Ray tells these apart
            with faults_told() as told, elsewhere(composite, [machines[0], gone]):
                left = composite.score(asked)
            assert told.counts() == {"scorer/lost": 1}
            assert without_places(left) == without_places(taken) == without_places(alone)


def test_a_machine_that_is_stuck_is_lost_and_one_that_is_slow_is_not(machines, plugin):
    asked = items(4, TEXTS[:3])
    config = rewards(slow={"use": f"{plugin}:slow"})
    with build_composite_reward(config) as composite:
        with elsewhere(composite, machines) as others, faults_told() as told:
            others._look_s = 0.5
            both = composite.score(asked)
            assert (len(places(both)), told.faults) == (2, [])
            scorers()[0].suspend()
            one = composite.score(asked)
        assert told.counts() == {"scorer/lost": 1}
        assert len(places(one)) == 1
        assert without_places(one) == without_places(both)


def test_a_machine_that_cannot_score_is_left_out_before_it_is_asked(machines, plugin, monkeypatch):
    config = rewards(each={"use": f"{plugin}:each"})
    monkeypatch.setattr(distributed_scorers, "sha256_of", lambda path: b"an older file")
    with build_composite_reward(config) as composite:
        with faults_told() as told, elsewhere(composite, machines):
            scored = composite.score(items(2, ["one"]))
        assert told.counts() == {"scorer/lost": 2}
        assert "is another file there than here" in told.faults[0][2]
        assert [r.value for r in scored] == [0.03, 0.03]


def test_plugins_find_what_they_find_here(machines, plugin, tmp_path_factory, monkeypatch):
    """Variables of the run, closed files of the working folder, and what they remember."""
    folder = tmp_path_factory.mktemp("working")  # not below the plugin's, which it may read
    (folder / "secret.txt").write_text("the golds")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MMR1_BONUS", "100")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    config = rewards(
        of_run={"use": f"{plugin}:of_run"}, **{f"{plugin}:counted": {"call": "batch"}}
    ).model_copy(update={"allow_weak_sandbox": True})
    asked = [
        replace(i, sample=replace(i.sample, meta={"secret": str(folder / "secret.txt")}))
        for i in items(4, ["one"])
    ]
    with build_composite_reward(config) as composite:
        alone = [composite.score(asked) for _ in range(3)]
    assert [r.value for scored in alone for r in scored] == [
        9 + n for n in (1, 2, 3) for _ in asked
    ]
    with build_composite_reward(config) as composite, elsewhere(composite, machines):
        with faults_told() as told:
            assert [composite.score(asked) for _ in range(3)] == alone
        assert not told.counts()


def test_a_folder_that_a_machine_may_not_enter_leaves_it_out(machines, plugin, monkeypatch):
    monkeypatch.setattr(Path, "is_dir", lambda path: exec("raise PermissionError(13, 'no')"))
    scorer = distributed_scorers.Scorer(rewards(exact={}), Path("/none"), {}, {}, set())
    assert scorer.build() == "PermissionError: [Errno 13] no"


def test_a_plugin_that_is_named_by_its_file_is_compared_too(plugin):
    named = distributed_scorers._digests(rewards(**{f"{plugin}:each": {}}, exact={}))
    assert list(named) == [plugin]


def test_one_machine_scores_in_its_own_processes(machines):
    with build_composite_reward(rewards(exact={})) as composite:
        for engines in ([], [machines[0]] * 2):
            with elsewhere(composite, engines) as others:
                assert others is None


def test_tokens_and_pictures_are_sent_only_to_functions_that_read_them(plugin):
    plugin.write_text(PLUGIN + "\n\ndef looks(completion, media):\n    return len(media[0].data)\n")
    shown = with_image(sample("4"), (8, 8))
    asked = [RewardItem("4", shown, token_ids=(4,)), RewardItem("5", shown, token_ids=(5,))]
    config = rewards(exact={}, each={"use": f"{plugin}:each"})
    with build_composite_reward(config) as composite:
        (stretch,) = stretches(composite._functions)
        sent = stretch.to_send(asked)
        assert [m.data for i in sent for m in i.sample.media] == [None, None]
        assert sent[0].sample is sent[1].sample
        assert sent[0].sample.media[0].size == (8, 8)
        assert [i.token_ids for i in sent] == [(4,), (5,)]
    for name, length in (("math", 0), ("auto", 0), ("repetition", 1)):
        with build_composite_reward(rewards(**{name: {}})) as composite:
            (stretch,) = stretches(composite._functions)
            assert [len(i.token_ids) for i in stretch.to_send(asked)] == [length] * 2
    with build_composite_reward(rewards(looks={"use": f"{plugin}:looks"})) as composite:
        (stretch,) = stretches(composite._functions)
        assert stretch.to_send(asked) == asked


@pytest.mark.slow
def test_a_run_on_two_machines_that_loses_a_scorer_is_as_one_here(
    machines, plugin, tiny_model, mixed, tmp_path
):
    functions = {"plain": {"use": f"{plugin}:plain"}}

    def run(name: str, **sections: dict[str, Any]) -> Path:
        run_training(
            config_of_run(
                tiny_model,
                mixed,
                plugin,
                tmp_path / name,
                steps=6,
                rewards={"functions": functions},
                **sections,
            )
        )
        return tmp_path / name

    def kill_one() -> None:
        rows = tmp_path / "two/metrics.jsonl"
        while not rows.exists() or not rows.read_text():
            time.sleep(0.05)
        scorers()[0].kill()

    killing = threading.Thread(target=kill_one, daemon=True)
    killing.start()
    two = run("two", resources={"engines": 2})
    killing.join(timeout=1)
    assert json.loads((two / "summary.json").read_text())["faults"] == {"scorer/lost": 1}
    assert "no longer scores" in (two / "train.log").read_text()
    assert_close(two, run("one"))


@pytest.mark.slow
def test_an_evaluation_on_two_machines_is_as_one_here(
    machines, plugin, tiny_model, mixed, tmp_path, caplog
):
    def run(engines: int) -> list[str]:
        out = tmp_path / str(engines)
        run_evaluations(
            offline_config(
                tiny_model,
                mixed,
                tmp_path,
                1,
                1,
                data={"eval": str(mixed)},
                rewards={"functions": {"plain": {"use": f"{plugin}:plain"}}},
                eval={"n": 2, "output_dir": str(out)},
                resources={"engines": engines},
            )
        )
        return sorted((out / "completions.jsonl").read_text().splitlines())

    with caplog.at_level(logging.INFO):
        three = run(3)
        assert "rewards are computed on 2 machines" in caplog.text
        caplog.clear()
        assert three == run(1)
        assert "machines" not in caplog.text


@pytest.mark.slow
def test_rounds_of_dpo_on_two_machines_are_as_one_here(
    machines, plugin, tiny_model, mixed, tmp_path, caplog
):
    def run(name: str, **sections: dict[str, Any]) -> Path:
        config = offline_config(
            tiny_model,
            mixed,
            tmp_path / name,
            4,
            1,
            rewards={"functions": {"plain": {"use": f"{plugin}:plain"}}},
            dpo={"rounds": 2, "prompts_per_round": 4, "preferred_by": "reward", "batch_size": 3},
            **sections,
        )
        run_iterative_dpo(config)
        return tmp_path / name

    with caplog.at_level(logging.INFO):
        two = run("two", resources={"engines": 2})
        assert "rewards are computed on" in caplog.text
    assert_same(two, run("one"))
