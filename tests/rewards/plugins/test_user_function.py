from __future__ import annotations

import inspect
import socket
import threading
from functools import partial
from pathlib import Path

import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.rewards import build_composite_reward
from mmr1.rewards.plugins import user_function
from mmr1.rewards.sandbox.pool import Pool, try_walls
from mmr1.rewards.sandbox.walls import LANDLOCK
from mmr1.types import Status
from tests.rewards.helpers import item
from tests.rewards.plugins.user_functions import (
    DIALECTS,
    PLUGINS,
    direct,
    items,
    load,
    plugin,
    score,
)


@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "here"])
@pytest.mark.parametrize(("file", "function"), DIALECTS)
def test_each_dialect_unchanged(file: str, function: str, isolated: bool) -> None:
    asked = items(prompt="How many?") if function == "length_reward" else items()
    rewards = score(f"{PLUGINS / file}.py:{function}", asked, sandbox={} if isolated else None)
    assert [reward.error for reward in rewards] == [None] * 3
    assert [reward.value for reward in rewards] == pytest.approx(direct(file, function))


def test_other_numbers_of_a_dict_are_logged_apart() -> None:
    rewards = score(f"{PLUGINS}/easyr1_batch.py:compute_score", items())
    assert rewards[0].components == {"plugin": 1.0, "plugin/format": 1.0, "plugin/accuracy": 1.0}


def test_settings_and_columns_reach_the_function() -> None:
    spec = f"{PLUGINS}/verl_batch.py:compute_score"
    assert score(spec, items(), bonus=0.5)[0].value == 1.5
    spec = f"{PLUGINS}/own.py:shortest"
    assert score(spec, items(["x" * 50]), limit=100)[0].value == 0.5
    with_grid = [item("x", grid_thw=((1, 4, 6),), meta={"image_path": ["a.png", "b.png"]})]
    assert score(f"{PLUGINS}/trl.py:grid_reward", with_grid)[0].value == 6.0


def test_a_dotted_path() -> None:
    assert score("tests.rewards.plugins.dialects.own:shortest", items(["x" * 25]))[0].value == 0.75


def test_a_text_prompt_gives_trl_texts_whatever_the_code_says(tmp_path: Path) -> None:
    file = tmp_path / "words.py"
    file.write_text(
        "def reward(completions, **columns):\n"
        '    return [float("content" in said) for said in completions]\n'
    )
    texts = ["the content", "table of contents", "no"]
    values = [r.value for r in score(f"{file}:reward", items(texts, prompt="Q?"))]
    assert values == [1.0, 1.0, 0.0]
    spec = f"{PLUGINS}/trl.py:length_reward"
    rewards = score(spec, items())
    assert [reward.value for reward in rewards] == [0.01] * 3  # each is a list of one message


def test_a_style_is_stated(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def lengths(completions, **columns):\n    return [len(c) for c in completions]\n"
    )
    assert score(f"{file}:lengths", items(), style="trl")[1].value == 1.0
    message = r"style: verl is for parameters solution_strs, ground_truths or .*; it has: "
    with pytest.raises(ValueError, match=message):
        score(f"{file}:lengths", [], style="verl")
    with pytest.raises(ValueError, match="unknown reward style 'deepspeed'"):
        score(f"{file}:lengths", [], style="deepspeed")


def test_a_dict_without_a_total_says_which_key_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "easyr1.py"
    file.write_text(
        'def compute_score(reward_inputs):\n    return [{"format": 1.0}] * len(reward_inputs)\n'
    )
    reward = score(f"{file}:compute_score", items())[0]
    assert "without 'overall' (it has: format)" in (reward.error or "")


def test_easyr1_takes_its_total_from_overall_alone(tmp_path: Path) -> None:
    file = tmp_path / "easyr1.py"
    file.write_text("def compute_score(reward_input):\n    return {'score': 1.0, 'format': 1.0}\n")
    reward = score(f"{file}:compute_score", items())[0]
    assert "without 'overall' (it has: score, format)" in (reward.error or "")


@pytest.mark.parametrize("isolated", [True, False])
def test_an_error_names_its_line_and_the_example(tmp_path: Path, isolated: bool) -> None:
    file = tmp_path / "broken.py"
    file.write_text(
        "import json\n\n"
        "def reward(completion, answer):\n    return json.loads(completion)['score']\n"
    )
    asked = [item("no JSON", answer="seven")]
    reward = score(f"{file}:reward", asked, sandbox={} if isolated else None)[0]
    error = reward.error or ""
    assert "JSONDecodeError" in error
    assert "broken.py:4" in error
    assert "answer 'seven'" in error
    assert "completion 'no JSON'" in error


def test_names_of_components_are_bounded_over_the_run(tmp_path: Path) -> None:
    file = tmp_path / "names.py"
    file.write_text(
        "def reward(completion):\n"
        "    return {'score': 1.0, **dict.fromkeys(completion.split(','), 0.5)}\n"
    )
    texts = [",".join(f"part{n}" for n in range(64)), "part1,part63", "one_more", "a\nb"]
    first, known, beyond, odd = score(f"{file}:reward", items(texts))
    assert first.value == known.value == 1.0
    assert beyond.status is odd.status is Status.ERROR
    assert "one_more" in (beyond.error or "")
    assert "names of components" in (odd.error or "")


POISON = ["clean", "poison", "clean again"]


@pytest.mark.parametrize(
    ("function", "statuses", "message"),
    [
        ("raises", {Status.ERROR}, "KeyError: 'no such label'"),
        ("hangs", {Status.TIMEOUT}, "no verdict in 1 s"),
        ("hangs_in_c", {Status.TIMEOUT}, "no verdict in 1 s"),
        ("nan", {Status.ERROR}, "returned nan, which is not finite"),
        ("reward_of_nan", {Status.ERROR}, "a Reward whose value is nan, not finite"),
        ("part_of_nan", {Status.ERROR}, "a Reward whose part is nan, not finite"),
        ("forges", {Status.ERROR}, "the verifier process sent"),
        ("none", {Status.ERROR}, "returned None"),
        ("text", {Status.ERROR}, "returned text ('1.0'), not a number"),
        ("allocates", {Status.ERROR, Status.KILLED}, ""),
        ("exits", {Status.KILLED}, "ended (exit code 0)"),
        ("system_exit", {Status.ERROR}, "SystemExit"),
        ("writes", {Status.ERROR}, "set sandbox: null"),
        ("batch_raises", {Status.ERROR}, "one of them is poisoned"),
        ("batch_hangs", {Status.TIMEOUT}, "no verdict in 1 s"),
    ],
)
def test_a_bad_call_costs_the_others_nothing(
    function: str, statuses: set[Status], message: str
) -> None:
    rewards = score(f"{PLUGINS}/bad.py:{function}", items(POISON), timeout_s=1.0)
    assert [rewards[0].value, rewards[2].value] == [1.0, 1.0]
    assert rewards[1].value is None
    assert rewards[1].status in statuses
    assert rewards[1].error is not None
    assert message in rewards[1].error
    assert not Path("/tmp/mmr1-plugin-escaped").exists()


def test_a_gigabyte_of_print_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    rewards = score(f"{PLUGINS}/bad.py:prints_a_gigabyte", items(POISON), timeout_s=30.0)
    assert [reward.value for reward in rewards] == [1.0, 1.0, 1.0]
    assert len(capfd.readouterr().out) < 1000


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("too_few", "returned 2 values for 3 completions"),
        ("not_a_list", "returned float for 3 completions"),
    ],
)
@pytest.mark.parametrize("isolated", [True, False])
def test_a_wrong_number_of_values(function: str, message: str, isolated: bool) -> None:
    rewards = score(f"{PLUGINS}/bad.py:{function}", items(), sandbox={} if isolated else None)
    assert {reward.status for reward in rewards} == {Status.ERROR}
    assert message in (rewards[0].error or "")


@pytest.mark.parametrize(
    "function", ["raises", "hangs", "nan", "reward_of_nan", "none", "text", "system_exit"]
)
def test_what_can_be_caught_without_a_sandbox(function: str) -> None:
    rewards = score(f"{PLUGINS}/bad.py:{function}", items(POISON), sandbox=None, timeout_s=2.0)
    assert [rewards[0].value, rewards[1].value, rewards[2].value] == [1.0, None, 1.0]


def test_a_loop_without_a_sandbox_does_not_go_on_beside_the_run() -> None:
    threads = set(threading.enumerate())
    score(f"{PLUGINS}/bad.py:hangs", items(POISON), sandbox=None, timeout_s=0.2)
    for thread in set(threading.enumerate()) - threads:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bad.py:unknown_dialect", "known are:"),
        ("bad.py:NOT_A_FUNCTION", "is a int, not a function"),
        ("bad.py:raise", "did you mean 'raises'"),
        ("missing.py:reward", "no such Python file"),
        ("bad.py", "name the function of the file too"),
    ],
)
def test_a_plugin_that_cannot_be_used_says_so_at_the_start(
    spec: str, message: str, isolated: bool
) -> None:
    with pytest.raises(ValueError, match=message):
        score(f"{PLUGINS}/{spec}", [], sandbox={} if isolated else None)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'limit'"):
        score(f"{PLUGINS}/own.py:shortest", [], limt=3)


def test_a_setting_nearly_a_parameter_is_refused(tmp_path: Path) -> None:
    """The documentation's form: ``**sample`` would swallow it."""
    file = tmp_path / "own.py"
    file.write_text(
        "def reward(completion, answer, *, limit=3, **sample):\n"
        "    return limit + sample.get('more', 0)\n"
    )
    assert score(f"{file}:reward", items(["x"]), more=4)[0].value == 7
    with pytest.raises(ValueError, match=r"no setting 'limitt' \(did you mean 'limit'\?\)"):
        score(f"{file}:reward", [], limitt=3)


def test_a_file_with_a_syntax_error(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def reward(completion, answer)\n    return 1.0\n")
    with pytest.raises(ValueError, match=r"broken.py cannot be imported: SyntaxError.*line 1"):
        score(f"{file}:reward", [])


def test_a_file_that_ends_the_process_when_imported(tmp_path: Path) -> None:
    file = tmp_path / "leaving.py"
    file.write_text("import os\nos._exit(5)\n")
    with pytest.raises(ValueError, match=r"leaving.py.*exit code 5"):
        score(f"{file}:reward", [])


# --- the import of a plugin is behind the walls too ----------------------------------------------


@pytest.mark.parametrize(
    "attempt",
    [
        "open({out!r}, 'w')",
        "import socket; socket.create_connection(('127.0.0.1', {port}), timeout=1)",
        "import subprocess; subprocess.run(['/bin/touch', {out!r}], check=True)",
        "import os; os.kill(os.getppid(), 0)",
        "import os; os.mkdir({out!r})",
    ],
)
def test_an_import_cannot_get_out(tmp_path: Path, attempt: str) -> None:
    out = tmp_path / "out"
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = attempt.format(out=str(out), port=server.getsockname()[1])
        spec = plugin(tmp_path / "own", code)
        with pytest.raises(ValueError, match=r"plugin.py.*PermissionError.*set sandbox: null"):
            score(spec, items())
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert not out.exists()


def test_a_socket_of_the_import_does_not_send_at_call_time(tmp_path: Path) -> None:
    code = (
        "import socket\n"
        "try:\n"
        "    channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "    channel.connect(('127.0.0.1', {port}))\n"
        "except OSError:\n"
        "    channel = None\n"
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        spec = plugin(
            tmp_path / "own",
            code.format(port=receiver.getsockname()[1]),
            "float(channel.send(b'x')) if channel else -1.0",
        )
        assert [reward.value for reward in score(spec, items())] == [-1.0] * 3
        receiver.setblocking(False)
        with pytest.raises(BlockingIOError):
            receiver.recv(1)


def test_the_first_call_is_not_charged_with_the_import(tmp_path: Path) -> None:
    spec = plugin(tmp_path / "own", "import time; time.sleep(4)")
    assert [reward.value for reward in score(spec, items(), timeout_s=2.0)] == [1.0] * 3


def test_a_fresh_worker_imports_the_plugin_anew_before_its_next_call(tmp_path: Path) -> None:
    code = "import time; time.sleep(4)\ncalls = []"
    value = "float(calls.append(1) or len(calls)) if completion != 'poison' else time.sleep(99)"
    rewards = score(plugin(tmp_path / "own", code, value), items(POISON), timeout_s=2.0)
    assert [reward.value for reward in rewards] == [1.0, None, 1.0]
    assert rewards[1].status is Status.TIMEOUT


def test_an_import_that_does_not_end_has_a_deadline_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = plugin(tmp_path / "own", "import time; time.sleep(999)")
    monkeypatch.setattr(user_function, "Pool", partial(Pool, start_s=3.0))
    config = read_rewards({"plugin": {"type": spec}}), ScoringConfig(timeout_s=0.1)
    with pytest.raises(ValueError, match=r"plugin.py.*not ready after 3 s"):
        build_composite_reward(*config)


def test_a_plugin_sees_neither_secrets_nor_the_user_s_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    names = "'HF_TOKEN', 'WANDB_API_KEY'"
    spec = plugin(tmp_path / "own", "import os", f"float(any(n in os.environ for n in ({names})))")
    assert score(spec, items())[0].value == 0.0
    if LANDLOCK in try_walls():
        pytest.skip("no Landlock here")
    read = f"float(len(open({str(secret)!r}).read()))"
    (reward, *_) = score(plugin(tmp_path / "own", "", read), items())
    assert reward.status is Status.ERROR
    assert "rewards.NAME.sandbox.readable" in (reward.error or "")
    (reward, *_) = score(
        plugin(tmp_path / "own", "", read), items(), sandbox={"readable": [str(secret)]}
    )
    assert reward.value == 7.0
    (tmp_path / "own" / "table").write_text("12")
    near = "float(open(__file__.replace('plugin.py', 'table')).read())"
    assert score(plugin(tmp_path / "own", "", near), items())[0].value == 12.0


def test_libraries_can_be_imported_behind_the_walls(tmp_path: Path) -> None:
    code = "import numpy, torch, transformers, sympy, PIL.Image, asyncio"
    value = "float(torch.tensor(numpy.ones(3)).sum())"
    assert score(plugin(tmp_path / "own", code, value), items(), timeout_s=60.0)[0].value == 3.0


def test_examples_are_all_here() -> None:
    assert {f"{file}.py" for file, _ in DIALECTS} == {
        path.name for path in PLUGINS.glob("*.py") if path.name not in ("bad.py", "__init__.py")
    }
    assert all(inspect.isfunction(load(file, name)) for file, name in DIALECTS)
