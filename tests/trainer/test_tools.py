"""Whole runs with tools: what is learned from, what is written, and that it repeats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from datasets_prep.demonstrations import Standard, write_demonstrations
from mmr1.config.file import config_from
from mmr1.data.record import read_records
from mmr1.data.responses import demonstration
from mmr1.evaluation.benchmarks import run_evaluations
from mmr1.report.page import write_report
from mmr1.report.run_reader import open_run
from mmr1.trainer.train import run_training, training_steps
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.jsonl import read_jsonl
from tests.report.elements import element, unpacked
from tests.trainer.conversations import brief_model, write_scans
from tests.trainer.tool_runs import config


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory) -> Path:
    return brief_model(tiny_model, tmp_path_factory.mktemp("models") / "brief")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_scans(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(model, data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("tools") / "run"
    run_training(config(model, data, out))
    return out


def test_metrics_tell_of_turns_calls_and_pictures(run):
    logged = read_jsonl(run / "metrics.jsonl")
    rollouts = read_jsonl(run / "rollouts/step_000001.jsonl")
    turns = [c["turns"] for row in rollouts for c in row["completions"]]
    assert len(turns) == 6
    calls = [call for of in turns for t in of for call in t["calls"]]
    first = logged[0]
    policys = [t for of in turns for t in of if t["role"] == "assistant"]
    assert first["environment/turns"] == pytest.approx(len(policys) / 6)
    assert first["environment/calls/zoom"] == pytest.approx(len(calls) / 6)
    assert first["environment/frac_tool_call"] == 1
    # The last turns' calls are not run, and no other fails.
    not_run = sum(call["error"] is not None for call in calls)
    assert first["environment/frac_failed_calls"] == pytest.approx(not_run / len(calls))
    assert not_run <= 6
    assert first["environment/frac_failed"] == 0
    assert first["tokens/completion"] == sum(t["tokens"] for t in policys)
    assert first["tokens/environment"] == sum(t["tokens"] for of in turns for t in of) - sum(
        t["tokens"] for t in policys
    )
    assert first["rollout/logprob_diff_after_image"] < 1e-4
    assert first["rollout/logprob_diff_mean"] < 1e-4
    assert first["grad_norm"] > 0


def test_rewards_see_the_conversation(run):
    """The plugin's reward is made of messages, calls and pictures; see plugins.py."""
    for row in read_jsonl(run / "rollouts/step_000002.jsonl"):
        for c in row["completions"]:
            pictures = sum(len(t["media"]) for t in c["turns"])
            assert c["components"]["said"] == pytest.approx(
                pictures + 0.1 * len(c["turns"]) + 0.01 * len(c["text"])
            )
            assert c["components"]["tool_use"] == 1


def test_conversations_of_a_run_become_demonstrations(run, data, model, tmp_path):
    """As if none had been cut off: the record says what the environment answered, token for token.

    Its pictures are those of the run, read back from the record alone.
    """
    rollouts = read_jsonl(run / "rollouts/step_000001.jsonl")
    for row in rollouts:
        for completion in row["completions"]:
            completion["truncated"] = False
    copy = tmp_path / "run"
    shutil.copytree(run / "media", copy / "media")
    (copy / "rollouts").mkdir()
    lines = [json.dumps(row) + "\n" for row in rollouts]
    (copy / "rollouts/step_000001.jsonl").write_text("".join(lines))
    out = tmp_path / "out/sft.jsonl"
    out.parent.mkdir()
    counts = write_demonstrations(data, copy / "rollouts", out, Standard("tool_use", 1.0, 3))
    shutil.rmtree(copy)
    assert counts[0] == len(read_records(out)) >= 4
    family = load_family(str(model))
    media = MediaCache(family.prepare_media)
    of_run = {row["id"]: row["completions"] for row in rollouts}
    for sample in read_records(out):
        learned = demonstration(family, family.render_prompt(sample), media).completions[0]
        told = [span for span in learned.spans if span.role == "tool"]
        answers = [
            [turn for turn in completion["turns"] if turn["role"] == "tool"]
            for completion in of_run[sample.id.rpartition("-")[0]]
        ]
        assert [(s.tokens, s.text, [media[m].digest for m in s.media]) for s in told] in [
            [(t["tokens"], t["text"], [m["digest"] for m in t["media"]]) for t in turns]
            for turns in answers
        ]


def test_pictures_of_tools_are_in_the_run_and_in_its_report(run, tmp_path):
    rollouts = read_jsonl(run / "rollouts/step_000002.jsonl")
    shown = [
        m for row in rollouts for c in row["completions"] for t in c["turns"] for m in t["media"]
    ]
    assert shown
    assert all((run / medium["path"]).is_file() for medium in shown)
    write_report([open_run(run)], tmp_path / "report.html", 10**6)
    html = (tmp_path / "report.html").read_text()
    groups = [g for g in unpacked(html, "rollouts-0-2") if not g["task"].startswith("held-out")]
    in_page = [d for g in groups for c in g["completions"] for t in c["turns"] for d in t["media"]]
    assert in_page == [medium["digest"] for medium in shown]
    blocks = json.loads(element(html, "summary"))["blocks"]
    assert set(in_page) <= set(blocks)


def test_a_resumed_run_has_the_numbers_of_one_that_was_not_interrupted(run, model, data, tmp_path):
    out = tmp_path / "run"
    run_training(config(model, data, out, max_steps=1))
    longer = config(model, data, out)
    run_training(longer, resume=True)
    for name in ("metrics.jsonl", "rollouts/step_000002.jsonl"):
        rows = [
            {k: v for k, v in row.items() if not k.startswith("time/")}
            for row in read_jsonl(out / name)
        ]
        wanted = read_jsonl(run / name)
        assert [
            {k: v for k, v in row.items() if not k.startswith("time/") and k != "lr"}
            for row in wanted
        ] == [{k: v for k, v in row.items() if k != "lr"} for row in rows]


def test_an_evaluation_has_tools_too(run, data, tmp_path):
    trained = config(run / "checkpoints/step_000002", data, tmp_path / "unused")
    run_evaluations(trained.changed({"eval.output_dir": str(tmp_path / "eval")}))
    (file,) = tmp_path.rglob("completions.jsonl")
    rows = read_jsonl(file)
    assert {row["mode"] for row in rows} == {"greedy", "sampled"}
    for row in rows:
        roles = [t["role"] for t in row["turns"]]
        assert roles[::2] == ["assistant"] * len(roles[::2])
        assert row["score"] == ("tool" in roles)  # a call in a turn that was cut off never ran
    assert any(row["score"] for row in rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rollout": {"stop": ["x"]}},
            "environment, rollout.stop: a stop string could end a turn within a call",
        ),
        (
            {"algorithm": {"name": "process_grpo", "advantage": {"step_rewards": "x.py:f"}}},
            "environment, algorithm.advantage.type=process: .* reads a completion as one text",
        ),
        (
            {"rewards": {"rm": {"type": "reward_model", "path": "rm"}}},
            "environment, rewards: a reward model reads a completion as one text",
        ),
        (
            {"rollout": {"views": {"view": "noise", "strength": 0.5}}},
            "environment, rollout.views: a tool would show the original",
        ),
    ],
)
def test_what_conversations_are_not_made_for_is_refused(changes, message):
    tree = {"model": {"path": "m"}, "environment": {"tools": ["zoom"]}, **changes}
    with pytest.raises(ValueError, match=f"{message}.*; leave one of them out"):
        config_from(tree)


def test_pictures_of_tools_that_a_served_reference_does_not_see_are_refused(model, data, tmp_path):
    made = config(model, data, tmp_path / "out")
    served = {"type": "server", "url": "http://127.0.0.1:9"}
    with pytest.raises(ValueError, match=r"environment\.tools: zoom return pictures, which a "):
        run_training(made.changed({"algorithm.kl.reference": served}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, r"'environment\.tools' is missing"),
        ({"type": "a.py:B", "tools": ["zoom"], "max_turns": 0}, "max_turns"),
        ({"tools": ["zoom", "zoom"]}, "a tool is named twice"),
        ({"tools": ["zoom"], "options": {"a": 1}}, "type 'tools' has no 'options'"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(environment, message):
    with pytest.raises(ValueError, match=message):
        config_from({"model": {"path": "m"}, "environment": environment})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("environment.tools=[zom]", "unknown tool 'zom' (did you mean 'zoom'?)"),
        ("environment.tools=[nowhere.py:f]", "nowhere.py: no such Python file"),
        ("environment=nowhere.py:C", "nowhere.py: no such Python file"),
    ],
)
def test_a_wrong_name_is_told_first(environment, message, mmr1, model, data, tmp_path):
    file = tmp_path / "rl.yaml"
    file.write_text(f"model: {{path: {model}}}\ndata: {{train: {data}}}\nrollout: {{engine: hf}}\n")
    code, _, errors = mmr1("train", file, environment, f"trainer.output_dir={tmp_path / 'out'}")
    assert code
    assert message in " ".join(errors.split())
    assert not (tmp_path / "out").exists()


def test_conversations_are_replayed_after_a_resume(model, data, tmp_path):
    """Those with the pictures that a tool made, from the checkpoint of a run that was stopped."""
    out = tmp_path / "out"
    run = config(model, data, out, max_steps=4, validation=None)
    run = run.changed({"algorithm.filter_groups": "replay"})
    steps = training_steps(run)
    next(steps), next(steps)
    steps.close()
    run_training(run, resume=True)
    lines = read_jsonl(out / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["replay/size"] >= lines[1]["replay/size"] > 0
    state = json.loads((out / "checkpoints/step_000004/training/state.json").read_text())
    spans = [s for g in state["kept"]["groups"] for c in g["completions"] for s in c["spans"]]
    assert any(span["media"] for span in spans)
