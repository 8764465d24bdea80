"""Rows of other projects, through their forms, into reward files of those projects' shapes.

What the functions pay must be what their own trainers would have them pay: the test calls them by
hand with the columns that those would pass.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mmr1.data.record import read_records, write_records
from mmr1.types import Status
from tests.data.form_rows import write_media
from tests.rewards.plugins.cases import (
    GRID,
    Case,
    Direct,
    check_case,
    errors,
    items_of,
    score,
    section,
)

PROJECTS = "tests.rewards.plugins.projects"
use = partial(section, PROJECTS)


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    write_media(folder)
    return folder


def conversational(*columns: str, **made: Any) -> Direct:
    """One call per prompt, as R1-V's trainer and its forks make it, with columns of the row."""

    def direct(function: Any, row: dict[str, Any], texts: Sequence[str], media: Path) -> Any:
        given = {name: [row[name]] * len(texts) for name in columns}
        for name, make in made.items():
            given[name] = [make(row, media)] * len(texts)
        chats = [[{"role": "assistant", "content": text}] for text in texts]
        return function(completions=chats, **given)

    return direct


def _tagged_reply(row: dict[str, Any], media: Path) -> str:
    reply = row["conversations"][1]["value"].replace("<answer>", "").replace("</answer>", "")
    return f"<answer> {reply.strip()} </answer>"


def _verl(function: Any, row: dict[str, Any], texts: Sequence[str], media: Path) -> Any:
    gold = row["reward_model"]["ground_truth"]
    values = [function(row["data_source"], text, gold, row["extra_info"]) for text in texts]
    return [value["score"] if isinstance(value, dict) else value for value in values]


def _easyr1(function: Any, row: dict[str, Any], texts: Sequence[str], media: Path) -> Any:
    inputs = [{"response": t, "response_length": 3, "ground_truth": row["answer"]} for t in texts]
    return [score["overall"] for score in function(inputs)]


def _trl_lengths(function: Any, row: dict[str, Any], texts: Sequence[str], media: Path) -> Any:
    return function(completions=list(texts), completion_ids=[[7, 8, 9]] * len(texts))


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def tagged(text: str) -> str:
    return f"<think>so it is</think>\n<answer>{text}</answer>"


VIDEO = {"data_type": "video", "path": "clip.mp4", "problem_id": 2}
CHOICE = {
    **VIDEO,
    "problem": "Which animal runs?",
    "problem_type": "multiple choice",
    "options": ["A. cat", "B. ant"],
    "solution": "<answer>B</answer>",
}
NUMBER = {
    **VIDEO,
    "problem": "How long?",
    "problem_type": "numerical",
    "options": [],
    "solution": "<answer>2.50</answer>",
}
REGRESSION = {**NUMBER, "problem_type": "regression", "solution": "<answer>4</answer>"}
VIDEO_R1 = [
    (CHOICE, [tagged("B"), tagged("A"), "B"]),
    (NUMBER, [tagged("2.5"), tagged("3"), tagged("2.500")]),
    (REGRESSION, [tagged("5"), tagged("4.0"), tagged("99")]),
]
GROUNDED = {
    "id": 1,
    "image": "a.png",
    "conversations": [
        {"from": "human", "value": "<image>Give the box of the cup."},
        {"from": "gpt", "value": "[3, 6, 33, 28]"},
    ],
}
WORDS = {
    "id": "onevision-7",
    "image": "a.png",
    "conversations": [
        {"from": "human", "value": "<image>Who is it?"},
        {"from": "gpt", "value": "<answer> dog </answer>"},
    ],
}
BOXES = [tagged("[6, 11, 69, 52]"), tagged("[0, 0, 10, 10]"), "no box"]
REC = {
    "image": "a.png", "problem": "the red cup", "solution": [3.5, 6.0, 33.5, 28.25],
    "width": 40, "height": 30, "normalized_solution": [87, 200, 837, 941],
}  # fmt: skip
COUNT = {"problem": "How many?", "image": "a.png", "solution": "<answer> 3 </answer>"}
ALGEBRA = {
    "problem": "Simplify.",
    "image": "a.png",
    "solution": r"<answer> $\frac{1}{2}$ </answer>",
}
GEOMETRY = {
    "data_source": "hiyouga/geometry3k",
    "prompt": [{"role": "user", "content": "<image>Find x."}],
    "images": ["a.png"],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "5"},
    "extra_info": {"split": "test", "index": 3},
}
VERL_COUNT = {
    **GEOMETRY, "data_source": "lab/count", "extra_info": {"split": "train", "index": 0}
}  # fmt: skip
CASES = [
    Case(
        "r1_v", "accuracy_reward",
        [(COUNT, [tagged("3"), tagged("4"), "3"]), (ALGEBRA, [tagged("$0.5$"), tagged("0.25")])],
        conversational("solution"),
    ),
    Case(
        "vlm_r1", "iou_reward", [(GROUNDED, BOXES)],
        conversational(
            solution=_tagged_reply, image_grid_thw=lambda row, media: GRID,
            image_path=lambda row, media: [str(media / row["image"])],
        ),
    ),
    Case(
        "vlm_r1", "accuracy_reward",
        [(WORDS, [tagged("dog"), "cat"]), ({**WORDS, "accu_reward_method": "mcq"}, ["dog", "cat"])],
        conversational(
            solution=_tagged_reply,
            accu_reward_method=lambda row, media: row.get("accu_reward_method", "default"),
        ),
    ),
    Case(
        "vlm_r1", "rec_reward", [(REC, [tagged("[3.5, 6.0, 33.5, 28.25]"), BOXES[1]])],
        conversational("solution"),
    ),
    Case("video_r1", "accuracy_reward", VIDEO_R1, conversational("solution", "problem_type")),
    Case(
        "video_r1", "options_reward", [(CHOICE, ["A", "B"])],
        conversational("options", "data_type", "path"),
    ),
    Case(
        "open_r1_video", "accuracy_reward",
        [({"problem": "Which?\nA. w\nB. x\nC. y\nD. z", "video": "clip.mp4",
           "solution": "<answer> D </answer>"},
          [tagged("D"), tagged("d"), "D"])],
        conversational("solution"),
    ),
    Case(
        "r1_onevision", "accuracy_reward", [(WORDS, [tagged("dog"), "cat"])],
        conversational("id", solution=_tagged_reply),
    ),
    Case(
        "easyr1", "compute_score",
        [({"problem": "<image>Find x.", "images": ["a.png"], "answer": "5"},
          [r"<think>so</think>\boxed{5}", r"\boxed{5}", "5"])],
        _easyr1,
    ),
    Case(
        "verl", "compute_score",
        [(GEOMETRY, ["it is 5", "it is 6"]), (VERL_COUNT, ["5", "it is 5"])], _verl,
    ),
    Case(
        "trl", "length_reward", [({"prompt": "What is 2 + 3?", "answer": "5"}, ["5", "6"])],
        _trl_lengths,
    ),
]  # fmt: skip


@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "not isolated"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.project}-{case.function}")
def test_a_project_s_rows_and_reward_file(case: Case, isolated: bool, media: Path) -> None:
    rewards = check_case(PROJECTS, case, isolated, media)
    paid = {reward.value for reward in rewards}
    assert len(paid) > 1 or case.function in ("options_reward", "length_reward")


def test_what_a_row_had_survives_a_conversion(media: Path) -> None:
    """Through the canonical record, as ``mmr1-data convert`` writes it."""
    samples = [item.sample for item in items_of(VIDEO_R1, media)[::3]]
    write_records(media / "records.jsonl", samples)
    again = read_records(media / "records.jsonl")
    assert [sample.meta["row"] for sample in again] == [sample.meta["row"] for sample in samples]
    items = [replace(item, sample=again[item.group]) for item in items_of(VIDEO_R1, media)]
    rewards = score({"theirs": use("video_r1", "accuracy_reward")}, items)
    assert [reward.value for reward in rewards] == [1, 0, 0, 1, 0, 1, 0.75, 1, 0]


def test_a_function_is_called_once_per_prompt_or_once_per_batch(
    tmp_path: Path, media: Path
) -> None:
    body = "def reward(completions, **columns):\n    return [len(completions)] * len(completions)\n"
    (tmp_path / "plain.py").write_text(body)
    (tmp_path / "says.py").write_text(f'REWARD_TYPE = "batch"\n{body}')
    items = items_of(VIDEO_R1, media)
    items = [*items[::2], *items[1::2]]  # the completions of a prompt need not be neighbours

    def sizes(file: str, **more: Any) -> set[float | None]:
        given = {"type": f"{tmp_path / file}.py:reward", **more}
        return {reward.value for reward in score({"f": given}, items)}

    assert sizes("plain") == {3.0}
    assert sizes("plain", call="batch") == {9.0}
    assert sizes("says") == {9.0}
    assert sizes("says", call="group") == {3.0}
    with pytest.raises(ValueError, match=r"call: batch is for functions that take lists.*verl"):
        score({"f": use("verl", "compute_score", call="batch")}, [])
    with pytest.raises(ValueError, match=r"type 'math' has no 'call'"):
        score({"math": {"call": "batch"}}, [])


def test_a_group_that_fails_costs_the_others_nothing(tmp_path: Path, media: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "def reward(completions, problem_type, **columns):\n"
        "    assert problem_type[0] != 'numerical', 'no numbers'\n"
        "    return [1.0] * len(completions)\n"
    )
    rewards = score({"f": {"type": f"{tmp_path}/fails.py:reward"}}, items_of(VIDEO_R1, media))
    assert [reward.value for reward in rewards] == [1.0] * 3 + [None] * 3 + [1.0] * 3
    assert "no numbers" in (rewards[4].error or "")


# --- rows of another task ------------------------------------------------------------------------

TASKS = [
    ({"prompt": asked("2 + 3?"), "answer": "5", "task": "math"}, ["5", "6"]),
    ({"prompt": asked("Write it."), "answer": "-", "task": "code"}, ["def f", "no"]),
    ({"prompt": asked("Who?"), "answer": "me", "task": "open"}, ["me", "5"]),
]


@pytest.mark.parametrize("isolated", [True, False])
def test_none_skips_the_row_for_that_function(isolated: bool, media: Path) -> None:
    functions = {
        "math": use("trl", "math_reward", sandbox={} if isolated else None),
        "code": use("trl", "code_reward", sandbox={} if isolated else None, weight=0.5),
        "seen": {"type": "exact", "weight": 0.0},
    }
    rewards = score(functions, items_of(TASKS, media))
    assert [reward.value for reward in rewards] == [1.0, 0.0, 0.5, 0.0, None, None]
    assert rewards[0].components == {"math": 1.0, "code": None, "seen": 0.0}
    assert [reward.status for reward in rewards[4:]] == [Status.SKIPPED] * 2
    assert rewards[4].error == "every reward function skipped it"
    both = score({**functions, "length": use("trl", "length_reward")}, items_of(TASKS, media))
    assert [reward.value for reward in both] == [4.0, 3.0, 3.5, 3.0, 3.0, 3.0]


# --- functions that stand on others --------------------------------------------------------------


@pytest.mark.parametrize("isolated", [True, False])
def test_a_plugin_stands_on_another_function(isolated: bool, media: Path) -> None:
    items = items_of(VIDEO_R1, media)
    items[1] = replace(items[1], token_ids=range(5))
    items[3] = replace(items[3], token_ids=range(5))
    items[7] = replace(items[7], token_ids=range(5))
    functions = {
        "accuracy": use("video_r1", "accuracy_reward", sandbox={} if isolated else None),
        "bonus": use(
            "video_r1", "length_bonus", sandbox={} if isolated else None,
            of="accuracy", longest=6,
        ),
        "share": use("video_r1", "share_of_best", sandbox={} if isolated else None),
        "spread": use("video_r1", "group_spread", sandbox={} if isolated else None),
    }  # fmt: skip
    rewards = score(functions, items)
    assert errors(rewards) == [None] * 9

    def values(name: str) -> list[float | None]:
        return [reward.components[name] for reward in rewards]

    accuracy = [1, 0, 0, 1, 0, 1, 0.75, 1, 0]
    assert values("accuracy") == accuracy
    assert values("bonus") == [0, 0, 0, 0.2, 0, 0, 0, 0.2, 0]
    assert values("share") == accuracy
    assert values("spread") == [0, 1, 1, 0, 1, 0, 0.25, 0, 1]


def test_a_plugin_has_no_reward_where_what_it_stands_on_has_none(
    tmp_path: Path, media: Path
) -> None:
    (tmp_path / "fails.py").write_text(
        "def reward(completion, answer):\n    return 1 / (completion != 'B')\n"
        "def of_it(completion, accuracy, group_accuracy):\n    return group_accuracy\n"
    )
    functions = {
        "first": {"type": f"{tmp_path}/fails.py:reward"},
        "second": {"type": f"{tmp_path}/fails.py:of_it", "of": "first"},
    }
    rewards = score(functions, items_of([(CHOICE, ["A", "B"])], media))
    assert rewards[0].components == {"first": 1.0, "second": 1.0}
    assert rewards[1].components == {"first": None, "second": None}
    with pytest.raises(ValueError, match=r"of=frist is not a reward before it \(first\)"):
        score({**functions, "second": {**functions["second"], "of": "frist"}}, [])


# --- signatures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("project", "function", "message"),
    [
        ("trl", "logs", "it needs 'log_metric', which only TRL's trainer has"),
    ],
)
def test_what_cannot_be_called_is_refused_by_name(
    project: str, function: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        score({"f": use(project, function)}, [])


# --- a process of its own ------------------------------------------------------------------------


def test_without_walls_it_runs_in_the_main_thread_of_a_process_of_its_own(
    tmp_path: Path, media: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMR1_API_KEY", "hunter2")
    out = tmp_path / "out"
    (tmp_path / "free.py").write_text(
        "import os, signal, socket, threading\n"
        "def reward(completion, answer):\n"
        "    signal.signal(signal.SIGALRM, lambda *_: None)\n"  # ValueError in another thread
        "    assert threading.current_thread() is threading.main_thread()\n"
        "    socket.socket().close()\n"
        f"    open({str(out)!r}, 'w').write(os.environ['MMR1_API_KEY'])\n"
        "    if completion == 'exit': os._exit(3)\n"
        "    if completion == 'hang': signal.pause()\n"
        "    return float(os.getpid())\n"
    )
    items = items_of([(COUNT, ["1", "exit", "2", "hang", "3"])], media)
    function = {"type": f"{tmp_path}/free.py:reward", "sandbox": None, "timeout_s": 2.0}
    rewards = score({"f": function}, items)
    assert [r.status for r in rewards] == [
        Status.OK, Status.KILLED, Status.OK, Status.TIMEOUT, Status.OK
    ]  # fmt: skip
    assert os.getpid() not in {reward.value for reward in rewards}
    assert out.read_text() == "hunter2"
    for reward in rewards[::2]:
        assert not Path(f"/proc/{int(reward.value or 0)}").exists()


def test_the_path_that_an_import_could_not_open_is_named(tmp_path: Path) -> None:
    certificates = tmp_path / "authority" / "own.pem"
    certificates.parent.mkdir()
    certificates.write_text("-----BEGIN CERTIFICATE-----")
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "tls.py").write_text(
        "import ssl\n"
        "def client(cafile):\n    ssl.create_default_context().load_verify_locations(cafile)\n"
        f"client({str(certificates)!r})\n"
        "def reward(completion, answer):\n    return 1.0\n"
    )
    with pytest.raises(ValueError, match=r"own\.pem.*NAME\.sandbox\.readable.*sandbox: null"):
        score({"f": {"type": f"{folder}/tls.py:reward"}}, [])


def test_a_variable_that_isolated_workers_do_not_get_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_API_KEY", "hunter2")
    (tmp_path / "client.py").write_text(
        "import os\nKEY = os.environ['LAB_API_KEY']\ndef reward(completion, answer): return 1.0\n"
    )
    said = r"client\.py .*LAB_API_KEY'; it ran isolated: LAB_API_KEY is not set there; set sandbox"
    with pytest.raises(ValueError, match=said):
        score({"f": {"type": f"{tmp_path}/client.py:reward"}}, [])


def test_a_bad_row_costs_the_other_rows_of_a_batch_nothing(tmp_path: Path, media: Path) -> None:
    """However many completions its prompt has."""
    (tmp_path / "batch.py").write_text(
        "REWARD_TYPE = 'batch'\n"
        "def reward(completions, solution, **columns):\n"
        "    pairs = zip(completions, solution)\n"
        "    return [float(s.strip() in c[0]['content']) for c, s in pairs]\n"
    )
    number = {**COUNT, "solution": "<answer> 5 </answer>"}
    items = items_of([(number, ["5"] * 6), (COUNT, ["<answer> 3 </answer>", "4"])], media)
    bad = {**items[0].sample.meta, "row": {**number, "solution": 5}}
    items = [replace(i, sample=replace(i.sample, meta=bad)) if i.group == 0 else i for i in items]
    rewards = score({"f": {"type": f"{tmp_path}/batch.py:reward"}}, items)
    assert [r.status for r in rewards] == [Status.ERROR] * 6 + [Status.OK] * 2
    assert [r.value for r in rewards[6:]] == [1.0, 0.0]
