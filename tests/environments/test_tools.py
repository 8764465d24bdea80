"""Tools: what the policy is told of them, and what comes back when it calls them."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmr1.config import ToolsConfig
from mmr1.environments.calls import read_calls
from mmr1.environments.environment import Action, Shown
from mmr1.environments.pictures import MAX_PARTS, to_parts
from mmr1.environments.schemas import described
from mmr1.environments.tools import ToolEnvironment, read_parts
from mmr1.types import MediaRef, Sample, Status, TextPart
from tests.faults import faults_told
from tests.paths import REPOSITORY
from tests.vision.media import encoded, noise, pixels, write_video

OWN = str(Path(__file__).with_name("tools.py"))
BUILT_IN = ("zoom", "rotate", "mark", "frame", "clip", "calculate")
NAMES = ("lookup", "halves", "sleep", "die", "connect", "write", "chatter", "huge", "odd")


def png(image: Image.Image) -> MediaRef:
    return MediaRef("image", data=encoded(image))


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    path = tmp_path_factory.mktemp("videos") / "video.mp4"
    return MediaRef("video", Path(write_video(path, 20, 64, 48, fps=10) or path))


@pytest.fixture(scope="module")
def environment():
    config = ToolsConfig(
        tools=(
            "zoom",
            "rotate",
            "mark",
            "frame",
            "clip",
            "calculate",
            "python",
            *(f"{OWN}:{n}" for n in NAMES),
        ),
        timeout_s=2,
        workers=1,
        max_characters=100,
        max_pixels=10_000,
    )
    built = ToolEnvironment(config, model_space="resized")
    yield built
    built.close()


PICTURE = Image.fromarray(noise(120, 80, 1))
SHOWN = [Shown(png(PICTURE), (60, 40)), Shown(png(Image.fromarray(noise(30, 30, 2))), (30, 30))]


def answer(environment, *calls, shown=SHOWN, last=False):
    turn = "I look." + "".join(f"<tool_call>{json.dumps(c)}</tool_call>" for c in calls)
    return environment.episode(Sample("1", ())).step(Action(turn, shown, last))


def one(environment, name, /, shown=SHOWN, **arguments):
    """The parts of the answer to one call, and its error."""
    got = answer(environment, {"name": name, "arguments": arguments}, shown=shown)
    (message,), (call,) = got.messages, got.calls
    assert message.role == "tool"
    return message.parts, call.error


def test_zoom_cuts_from_the_pictures_own_pixels(environment):
    (part,), error = one(environment, "zoom", box=[10, 5, 30, 20])
    assert error is None
    assert np.array_equal(pixels(part), noise(120, 80, 1)[10:40, 20:60])
    (part,), _ = one(environment, "zoom", image=1, box=[0, 0, 10, 10])
    assert np.array_equal(pixels(part), noise(30, 30, 2)[:10, :10])


@pytest.mark.parametrize(
    ("boxes", "model_space", "box"),
    [
        ("model", "0-1000", [100, 250, 500, 750]),
        ("model", "resized", [6, 10, 30, 30]),
        ("0-1", "resized", [0.1, 0.25, 0.5, 0.75]),
        ("original", None, [12, 20, 60, 60]),
    ],
)
def test_boxes_of_tools_are_read_in_one_space(boxes, model_space, box):
    config = ToolsConfig(tools=("zoom",), workers=1, boxes=boxes)
    with closing(ToolEnvironment(config, model_space=model_space)) as environment:
        (part,), error = one(environment, "zoom", box=box)
        assert error is None
        assert np.array_equal(pixels(part), noise(120, 80, 1)[20:60, 12:60])


def test_boxes_of_an_unknown_space_are_not_guessed():
    with closing(ToolEnvironment(ToolsConfig(tools=("zoom",), workers=1))) as environment:
        assert "set environment.boxes" in one(environment, "zoom", box=[1, 2, 30, 20])[1]


def test_equal_calls_bring_equal_pictures(environment):
    first, second = (one(environment, "zoom", box=[1, 2, 30, 20])[0][0] for _ in range(2))
    assert first.digest() == second.digest()
    other = one(environment, "zoom", box=[1, 2, 30, 21])[0][0]
    assert other.digest() != first.digest()


def test_rotate_and_mark(environment):
    (turned,), _ = one(environment, "rotate", degrees=90)
    assert np.array_equal(pixels(turned), np.rot90(noise(120, 80, 1), -1))
    (marked,), _ = one(environment, "mark", boxes=[[0, 0, 30, 20], [30, 20, 59, 39]])
    changed = (pixels(marked) != noise(120, 80, 1)).any(-1)
    assert changed[0, :61].mean() > 0.9
    assert changed[40, 60:118].mean() > 0.9
    assert not changed[60:78, 2:58].any()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("(1+2)**3 / 9", "3"),
        ("sqrt(2)", "1.4142135623731"),
        ("-7 // 2", "-4"),
        ("3 ** 40", "12157665459056928801"),
        ("1.0001 ** 10000", "2.718"),
    ],
)
def test_calculate(environment, expression, value):
    (part,), error = one(environment, "calculate", expression=expression)
    assert error is None
    assert part.text.startswith(value)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "__import__('os')",
        "a.b",
        "lambda: 1",
        "'x' * 9",
        "True",
        "10 ** 400 * 2 ** 4000",
        "2 ** 5000",
        "9.0 ** 999",
        "1e308 * 10",
    ],
)
def test_calculate_refuses_what_is_no_arithmetic(environment, expression):
    (part,), error = one(environment, "calculate", expression=expression)
    assert error
    assert part.text == f"Error: {error}"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("x = 6\nprint('six', x)\nx * 7", "six 6\n42\n"),
        ("import math, numpy as np\nnp.arange(4).sum() + math.comb(5, 2)", "np.int64(16)\n"),
        ("from sympy import *\nx = symbols('x')\nsolve(x**2 - 2, x)", "[-sqrt(2), sqrt(2)]\n"),
        ("print('a' * 5000)", "a" * 100 + "... (cut: 5,001 characters)"),
        ("print('b')\nexit()\nprint('c')", "b\n"),
        ("def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nf(10)", "55\n"),
    ],
    ids=range(6),
)
def test_python_shows_what_is_printed_and_the_last_value(environment, code, shown):
    (part,), error = one(environment, "python", code=code)
    assert error is None
    assert part.text == shown


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\nx / 0", "ZeroDivisionError: division by zero (line 2)"),
        ("print('before')\nraise KeyError(1)", "before\nKeyError: 1 (line 2)"),
        ("if", "SyntaxError: invalid syntax (<code>, line 1)"),
        ("while True: pass", "no answer in 2 s"),
        ("import os\nos._exit(0)", "its process ended"),
        ("x = bytearray(4 << 30)", "MemoryError"),
        ("open('/etc/hostname').read()", "no file can be opened"),
        ("import os\nos.close(0)\nos.open('/etc/hostname', os.O_RDONLY)", "no file can be opened"),
        ("import os\nos.listdir('/')", "no file can be opened"),
        ("open('/tmp/x', 'w')", "Operation not permitted"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 22))", "Error"),
        ("import subprocess\nsubprocess.run(['ls'])", "Error"),
        ("import mailbox", "and no other module (line 1)"),
    ],
    ids=range(13),
)
def test_what_pythons_code_cannot_do_is_what_the_policy_reads(environment, code, message):
    (part,), error = one(environment, "python", code=code)
    assert message in error
    assert part.text == f"Error: {error}"


_LAZILY_IMPORTED = """
import datetime, pprint, time
import numpy as np, sympy
from sympy import *
x = symbols("x")
calls = [
    lambda: np.random.default_rng(0).normal(), lambda: np.fft.fft([1, 2]),
    lambda: np.polynomial.Polynomial([1, 2])(3), lambda: np.ma.array([1]).sum(),
    lambda: np.percentile([1, 2], 50), lambda: np.mean([1]), lambda: np.std([1]),
    lambda: np.unique([1, 1]), lambda: np.histogram([1, 2]),
    lambda: product(x, (x, 1, 4)), lambda: satisfiable(x > 1), lambda: ask(Q.real(pi)),
    lambda: refine(Abs(x), Q.positive(x)), lambda: Matrix([[2, 1], [1, 3]]).eigenvects(),
    lambda: sympy.abc.y, lambda: sympy.stats.Die("D", 6),
    lambda: datetime.datetime.strptime("2020", "%Y"), lambda: time.strptime("2020", "%Y"),
    lambda: lambdify(x, sin(x))(1.0), lambda: nsolve(cos(x) - x, 1),
]
import sympy.abc, sympy.stats
failed = []
for number, call in enumerate(calls):
    try:
        call()
    except BaseException as error:
        failed.append((number, str(error)))
failed
"""


def test_python_has_what_its_modules_import_when_first_used(environment):
    (part,), error = one(environment, "python", code=_LAZILY_IMPORTED)
    assert (part.text, error) == ("[]\n", None)


_AFTER_A_CHANGE = """
import pathlib, resource, sys
from mmr1.environments.interpreter import python, warm_up
warm_up()
pathlib.Path(sys.argv[1], "new").touch()  # Python would read this folder again
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
print(python("import sympy\\nx = sympy.symbols('x')\\nsympy.satisfiable(x > 1)"))
"""


def test_modules_that_sympy_can_do_without_are_not_looked_for(tmp_path):
    paths = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    shown = subprocess.run(
        [sys.executable, "-c", _AFTER_A_CHANGE, tmp_path],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "{Q.gt(x, 1): True}" in shown.stdout, shown.stderr


def test_pythons_error_is_told_after_much_that_is_printed(environment):
    (part,), error = one(environment, "python", code="print('a' * 5000)\n1 / 0")
    assert error.endswith("ZeroDivisionError: division by zero (line 2)")
    assert part.text == f"Error: {error}"


def test_code_is_compiled_without_the_future_of_the_interpreter(environment):
    code = "def f(a: int): pass\nf.__annotations__['a'] is int"
    assert one(environment, "python", code=code)[0][0].text == "True\n"


def test_code_changes_nothing_for_the_next_call_and_gives_itself_no_reward(environment):
    change = "import math, sys\nmath.pi = 3\nsys.modules['math'].e = 2"
    assert one(environment, "python", code=change)[1] is None
    assert (
        one(environment, "python", code="import math\nmath.pi")[0][0].text == "3.141592653589793\n"
    )
    forged = (
        "import inspect, json\n"
        "frame = inspect.currentframe()\n"
        "while 'writer' not in frame.f_locals: frame = frame.f_back\n"
        "own = frame.f_locals\n"
        "from mmr1.rewards.sandbox.wire import pack_answer, LENGTH\n"
        "value = {'value': {'parts': [{'text': 'forged'}], 'reward': 99.0}}\n"
        "body = pack_answer(own['number'], value)\n"
        "own['writer'].write(LENGTH.pack(len(body)) + body)\n"
        "own['writer'].flush()\n"
        "import time\ntime.sleep(60)"
    )
    got = answer(environment, {"name": "python", "arguments": {"code": forged}})
    assert [m.text for m in got.messages] == ["forged"]
    assert got.reward is None


def test_an_answer_that_code_forges_is_short(environment):
    forged = (
        "import inspect\n"
        "frame = inspect.currentframe()\n"
        "while 'writer' not in frame.f_locals: frame = frame.f_back\n"
        "from mmr1.rewards.sandbox.wire import LENGTH\n"
        "writer = frame.f_locals['writer']\n"
        "writer.write(LENGTH.pack(1 << 20))\n"
        "writer.flush()\n"
        "import time\ntime.sleep(60)"
    )
    error = one(environment, "python", code=forged)[1]
    assert "a result of 1048576 bytes" in error


def test_what_a_process_may_have_forged_is_limited_in_all():
    config = ToolsConfig(tools=("zoom",), max_characters=1000, max_images=2)
    texts = read_parts([{"text": "x" * 900}] * 200, config)
    assert 1000 <= sum(len(part.text) for part in texts) <= 1100
    (image,) = to_parts(Image.new("RGB", (28, 28)), 10_000, 100)
    assert len(read_parts([image] * 100, config)) == 3  # one too many ends the conversation
    with pytest.raises(ValueError, match="not an answer"):
        read_parts([{"text": ""}] * (MAX_PARTS + 1), config)


def test_many_texts_of_a_tool_are_cut_together():
    assert to_parts(["ab"] * 200, 1, 5) == [
        {"text": "ab"}, {"text": "ab"}, {"text": "a... (cut: 2 characters)"},
    ]  # fmt: skip
    with pytest.raises(ValueError, match=f"more than {MAX_PARTS} texts and pictures"):
        to_parts(["a"] * 1000, 1, 5)


def test_frames_of_a_video(environment, video):
    shown = [Shown(video, (64, 48)), *SHOWN]
    (first,), error = one(environment, "frame", shown=shown, seconds=0.0)
    assert error is None
    (later,), _ = one(environment, "frame", shown=shown, seconds=1.55)
    assert pixels(first).shape == pixels(later).shape == (48, 64, 3)
    assert not np.array_equal(pixels(first), pixels(later))
    parts, _ = one(environment, "clip", shown=shown, start=0.0, end=2.0, frames=3)
    assert len({part.digest() for part in parts}) == 3
    assert "ends after 2.0 s" in one(environment, "frame", shown=shown, seconds=9.0)[1]
    assert "has 0 videos" in one(environment, "frame", seconds=1.0)[1]


def test_a_tool_of_ones_own(environment):
    assert one(environment, "lookup", name="b") == ((TextPart("b is 12 cm long"),), None)
    parts, _ = one(environment, "halves")
    assert [p.text if isinstance(p, TextPart) else pixels(p).shape for p in parts] == [
        "left:", (80, 60, 3), "right:", (80, 60, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("lookup", {"name": "z"}, "KeyError: 'z'"),
        ("lookup", {}, "missing a required argument: 'name'"),
        ("lookup", {"name": "a", "colour": 1}, "unexpected keyword argument 'colour'"),
        ("look_up", {"name": "a"}, "there is no tool 'look_up' (did you mean 'lookup'?)"),
        ("zoom", {"box": [1, 2, 3]}, "is not a box"),
        ("zoom", {"box": [30, 2, 10, 20]}, "the second corner lies before the first"),
        ("zoom", {"box": ["a", 2, 10, 20]}, "is not a box"),
        ("zoom", {"box": [0, 0, 9, 9], "image": 2}, "has 2 pictures, numbered from 0"),
        ("zoom", {"box": [0, 0, 9, 9], "image": "first"}, "has 2 pictures, numbered from 0"),
        ("sleep", {"seconds": 60}, "no answer in 2 s"),
        ("die", {}, "its process ended"),
        ("connect", {"port": 22}, "[Errno"),
        ("write", {"path": "/tmp/x"}, "PermissionError"),
        ("odd", {"kind": "object"}, "which is not text, picture or JSON value"),
    ],
)
def test_a_failure_is_what_the_policy_reads(environment, name, arguments, message):
    (part,), error = one(environment, name, **arguments)
    assert message in error
    assert part.text == f"Error: {error}"
    assert one(environment, "lookup", name="a")[1] is None  # the others continue


def test_what_comes_back_is_limited(environment):
    (part,), _ = one(environment, "chatter", length=5000)
    assert part.text == "x" * 100 + "... (cut: 5,000 characters)"
    (part,), _ = one(environment, "huge", width=400, height=100)
    assert pixels(part).shape == (50, 200, 3)


def test_values_that_are_no_text_are_json(environment):
    assert one(environment, "odd", kind="number")[0] == (TextPart("7"),)
    assert one(environment, "odd", kind="list")[0] == (TextPart("[1, 2]"),)
    assert one(environment, "odd", kind="nothing")[0] == ()


def test_several_calls_of_a_turn_are_answered_in_their_order(environment):
    calls = [{"name": "lookup", "arguments": {"name": n}} for n in ("b", "z", "a")]
    got = answer(environment, *calls)
    assert [m.text[:8] for m in got.messages] == ["b is 12 ", "Error: K", "a is 3.5"]
    assert [bool(call.error) for call in got.calls] == [False, True, False]


def test_a_turn_without_a_call_ends_the_conversation(environment):
    got = answer(environment)
    assert (got.messages, got.calls, got.cut) == ((), (), False)


def test_the_last_turn_is_not_answered(environment):
    got = answer(environment, {"name": "lookup", "arguments": {"name": "a"}}, last=True)
    assert (got.messages, got.cut) == ((), True)
    assert [call.name for call in got.calls] == ["lookup"]
    assert "not run" in got.calls[0].error
    (call,) = answer(environment, {"name": "any", "arguments": {}}, last=True).calls
    assert (call.name, "not run" in call.error) == ("", True)


def test_an_error_has_no_lone_surrogates(environment):
    (part,), error = one(environment, "\ud800")
    assert part.text.encode() == f"Error: {error}".encode()


def nested(levels):
    inside = "[" * (levels - 1) + "1" + "]" * (levels - 1)
    return f'<tool_call>{{"name": "a", "arguments": {{"b": {inside}}}}}</tool_call>'


@pytest.mark.parametrize(
    ("turn", "errors"),
    [
        ("<answer>7</answer>", []),
        ('<tool_call>{"name": "a"}</tool_call>', [None]),
        ('<tool_call>{"name": "a", "arguments": "{\\"b\\": 1}"}</tool_call>', [None]),
        ('<tool_call>{"name": "a"', ["without </tool_call>"]),
        ("<tool_call>zoom(1)</tool_call>", ["not valid JSON"]),
        ("<tool_call>[1]</tool_call>", ['a call is {"name"']),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', ["not a JSON object"]),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", ["not valid JSON"]),
        ('<tool_call>{"name": "a", "arguments": {"b": NaN}}</tool_call>', ["NaN is not a number"]),
        ('<tool_call>{"name": "a", "arguments": {"b": 1e999}}</tool_call>', ["1e999 is too large"]),
        (nested(32), [None]),
        (nested(33), ["nested too deep"]),
        (nested(500), ["nested too deep"]),
    ],
    ids=range(13),
)
def test_calls_are_read_or_are_an_error(turn, errors):
    calls = read_calls(turn)
    assert len(calls) == len(errors)
    for call, wanted in zip(calls, errors, strict=True):
        assert wanted in call.error if wanted else call.error is None


def test_schemas_come_from_type_hints_and_docstrings():
    zoom, halves, lookup = described(ToolsConfig(tools=("zoom", f"{OWN}:halves", f"{OWN}:lookup")))
    function = zoom.schema["function"]
    assert function["description"] == "Show a part of a picture at its full resolution."
    assert function["parameters"]["required"] == ["box"]
    box = {"type": "array", "items": {"type": "number"}}
    assert function["parameters"]["properties"]["box"].items() >= box.items()
    assert function["parameters"]["properties"]["image"]["type"] == "integer"
    assert (zoom.media, halves.media, lookup.media) == (
        {"image": "picture"},
        {"image": "image"},
        {},
    )
    assert (zoom.shows, halves.shows, lookup.shows) == (True, False, False)  # by their hints
    json.dumps([zoom.schema, halves.schema, lookup.schema])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("zom", "unknown tool 'zom' (did you mean 'zoom'?)"),
        (f"{OWN}:look", "has no 'look' (did you mean 'lookup'?)"),
        (f"{OWN}:LENGTHS", "is a dict, not a function"),
        (f"{OWN}:untyped", "untyped"),
        (f"{OWN}:undocumented", "undocumented"),
    ],
)
def test_a_tool_that_cannot_be_used_is_named_before_the_run(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        described(ToolsConfig(tools=(spec,)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("square_cals", "has no 'square_cals' (did you mean 'square_calls'?)"),
        ("LENGTHS", "'dict' object is not callable"),
        ("lookup", "KeyError: ''"),
    ],
)
def test_a_parser_that_cannot_be_used_is_told_before_the_run(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        described(ToolsConfig(tools=("calculate",), parser=f"{OWN}:{name}"))


def test_a_parser_of_ones_own():
    config = ToolsConfig(tools=(f"{OWN}:lookup",), parser=f"{OWN}:square_calls", workers=1)
    environment = ToolEnvironment(config)
    try:
        got = environment.episode(Sample("1", ())).step(
            Action("Let me see. [lookup|name=a][lookup|name=b]", (), last=False)
        )
    finally:
        environment.close()
    assert [m.text for m in got.messages] == ["a is 3.5 cm long", "b is 12 cm long"]


def test_python_in_a_list_of_ones_own_file():
    environment = ToolEnvironment(ToolsConfig(tools=(f"{OWN}:several",), workers=1))
    try:
        assert environment.tools == ("lookup", "python")
        assert one(environment, "python", code="print(6 * 7)") == ((TextPart("42\n"),), None)
        assert one(environment, "lookup", name="a") == ((TextPart("a is 3.5 cm long"),), None)
    finally:
        environment.close()


def test_the_tools_and_the_parser_of_a_file_share_its_variables():
    """A file is run once in each process, and not for each tool or turn."""
    environment = ToolEnvironment(ToolsConfig(tools=(f"{OWN}:note", f"{OWN}:notes"), workers=1))
    try:
        assert one(environment, "note", text="first")[1] is None
        assert one(environment, "notes") == ((TextPart("first"),), None)
    finally:
        environment.close()
    config = ToolsConfig(tools=(f"{OWN}:notes",), parser=f"{OWN}:noted_calls", workers=1)
    environment = ToolEnvironment(config)
    try:
        told = [answer(environment).messages[0].text for _ in range(2)]
    finally:
        environment.close()
    assert told == ["turn 0", "turn 0, turn 1"]


def calls_of(name, /, **arguments):
    return {"name": name, "arguments": arguments}


@pytest.fixture
def few():
    config = ToolsConfig(
        tools=(f"{OWN}:sleep", f"{OWN}:lookup", "python"), workers=2, timeout_s=5, max_calls=3
    )
    built = ToolEnvironment(config, timeout_s=0.4)
    yield built
    built.close()


def test_calls_beyond_the_cap_are_not_run_and_the_policy_is_told(few):
    got = answer(few, *(calls_of("lookup", name="ab"[n % 2]) for n in range(5)))
    told = [m.text for m in got.messages]
    assert told[:3] == ["a is 3.5 cm long", "b is 12 cm long", "a is 3.5 cm long"]
    assert told[3:] == ["Error: not run: a turn may call 3 tools"] * 2
    assert [c.error for c in got.calls] == [None] * 3 + [told[3].removeprefix("Error: ")] * 2
    assert got.failure is None


def test_independent_calls_run_side_by_side_and_are_answered_in_order(few, tmp_path):
    """Nothing is said to the first before the second hears: in turn, it would time out."""
    hear = f"{OWN}:hear"
    config = ToolsConfig(
        tools=(hear,), workers=2, timeout_s=20, sandbox={"readable": (str(tmp_path),)}
    )
    environment = ToolEnvironment(config)
    pipes = [tmp_path / name for name in ("one", "two")]
    for pipe in pipes:
        os.mkfifo(pipe)

    def speak() -> None:
        with pipes[0].open("w") as first, pipes[1].open("w") as second:
            second.write("second")
            first.write("first")

    threading.Thread(target=speak, daemon=True).start()
    try:
        got = answer(environment, *(calls_of("hear", pipe=str(pipe)) for pipe in pipes))
    finally:
        environment.close()
    assert [m.text for m in got.messages] == ["first", "second"]


def test_the_tools_of_one_conversation_have_a_budget_of_time(few):
    episode = few.episode(Sample("1", ()))
    turn = f"<tool_call>{json.dumps(calls_of('sleep', seconds=0.5))}</tool_call>"
    with faults_told() as told:
        first = episode.step(Action(turn, (), last=False))
        second = episode.step(Action(turn, (), last=False))
        another = few.episode(Sample("2", ())).step(Action(turn, (), last=False))
    assert first.failure is None
    assert second.failure is not None
    assert second.failure[0] == Status.TIMEOUT
    assert "rollout.timeout_s" in second.failure[1]
    assert another.failure is None
    assert told.counts() == {"environment/timeout": 1}


def test_the_policys_code_starts_no_thread(few):
    """Threads count as processes: a call could leave the machine without process ids."""
    code = "import concurrent.futures as f\nprint(list(f.ThreadPoolExecutor(4).map(abs, [-1])))"
    for line in ("import _thread\n_thread.start_new_thread(print, ())", code):
        _, error = one(few, "python", code=line)
        assert error is not None
    escape = (
        "import sys\nthreading = sys.modules['threading']\nthreading.Thread(target=print).start()"
    )
    _, error = one(few, "python", code=escape)
    assert error is not None
    assert "can't start new thread" in error
    assert (
        one(few, "python", code="import numpy as np\nprint(np.ones((50, 50)) @ np.ones(50))")[1]
        is None
    )


@pytest.fixture
def server():
    """A server that answers the path, or waits where the path is /slow."""

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/slow":
                time.sleep(30)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"page {self.path}".encode())

        def log_message(self, *args: object) -> None:
            """Nothing."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Pages) as here:
        threading.Thread(target=here.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{here.server_port}"
        here.shutdown()


def test_a_tool_in_the_sandbox_reaches_no_server(server):
    config = ToolsConfig(tools=(f"{OWN}:fetch", f"{OWN}:dial"), workers=1)
    built = ToolEnvironment(config)
    for host in (server, "http://example.org"):
        (part,), _ = one(built, "fetch", url=f"{host}/a")
        assert "the sandbox has no network; set environment.sandbox=null" in part.text
    (part,), _ = one(built, "dial")  # past Python, by the system call itself
    assert part.text == "-1"
    built.close()


def test_a_tool_without_walls_can_be_killed(server):
    config = ToolsConfig(tools=(f"{OWN}:fetch",), workers=1, timeout_s=1, sandbox=None)
    built = ToolEnvironment(config)
    for path, told in (("/a", "page /a"), ("/slow", "Error: no answer in 1 s"), ("/b", "page /b")):
        (part,), _ = one(built, "fetch", url=server + path)
        assert part.text == told
    built.close()
