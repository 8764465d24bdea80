"""Tools and environments in the styles of TRL, OpenRLHF and verl, unchanged.

The files beside this one are written as users of these projects write them, imports included.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmr1.config import OwnEnvironment, ToolsConfig
from mmr1.environments.build import build_environment
from mmr1.environments.environment import Action, Shown
from mmr1.environments.schemas import described
from mmr1.rewards.plugins.styles import detect
from mmr1.types import MediaRef, Message, Sample, Status, TextPart
from tests.vision.media import encoded, noise, pixels

FILES = Path(__file__).parent
TRL, AGENT, VERL = FILES / "trl_environment.py", FILES / "agent_func.py", FILES / "verl_tools.yaml"
SAMPLE = Sample("1", (Message("user", (TextPart("Which number?"),)),), "7", meta={"limit": 9})


def turn(name: str, **arguments: object) -> Action:
    call = json.dumps({"name": name, "arguments": arguments})
    return Action(f"<tool_call>{call}</tool_call>", (), last=False)


def texts(answer) -> list[str]:
    return [message.text for message in answer.messages]


@pytest.fixture
def built():
    """Builds environments and ends them."""
    made = []

    def build(**options):
        kind = OwnEnvironment if "type" in options else ToolsConfig
        config = kind(**{"workers": 1, "timeout_s": 20, **options})
        made.append(build_environment(config))
        return made[-1]

    yield build
    for environment in made:
        environment.close()


def test_trls_tools_are_functions_or_a_list_of_them(built):
    environment = built(tools=(f"{FILES}/trl_tools.py:tools",))
    episode = environment.episode(SAMPLE)
    assert environment.tools == ("multiply", "slow_echo", "patch")
    assert texts(episode.step(turn("multiply", a=6, b=7))) == ["42"]
    assert texts(episode.step(turn("slow_echo", message="hi"))) == ["echo: hi"]
    (message,) = episode.step(turn("patch", side=28)).messages
    assert pixels(message.parts[0]).shape == (28, 28, 3)
    assert message.parts[1] == TextPart("28 pixels")


def test_trls_environment(built):
    """Its methods are tools; each conversation has an object of its own, which keeps its state."""
    environment = built(type=f"{TRL}:NumberEnv")
    assert set(environment.tools) == {"guess", "give_up", "crash", "rules"}
    guess = next(t for t in described(OwnEnvironment(type=f"{TRL}:NumberEnv")) if t.name == "guess")
    assert guess.schema["function"]["parameters"]["required"] == ["number"]
    first, second = environment.episode(SAMPLE), environment.episode(SAMPLE)
    for episode in (first, second):
        begun = episode.begin("")
        assert (begun.text, begun.failure) == (" It is at most 9.", None)
    assert texts(first.step(turn("guess", number=3))) == ["higher"]
    assert texts(first.step(turn("guess", number=7))) == ["right"]
    again = first.step(turn("guess", number=7))
    assert texts(again) == ["Error: Game over."]
    assert again.calls[0].error == "Game over."
    assert texts(second.step(turn("give_up"))) == ["7"]
    assert texts(second.step(turn("rules"))) == ["NumberEnv: higher or lower"]
    assert [e.end().reward for e in (first, second)] == [1.0, -1.0]


def test_trls_get_reward_and_a_function_that_makes_environments(built):
    episode = built(type=f"{TRL}:make_environment").episode(SAMPLE)
    episode.begin("")
    episode.step(turn("guess", number=7))
    assert episode.end().reward == 10.0


def test_a_function_that_makes_environments_is_given_the_options(built):
    environment = built(type=f"{TRL}:make_limited", highest=9)
    assert "guess" in environment.tools
    assert environment.episode(SAMPLE).begin("").failure is None
    with pytest.raises(ValueError, match=r"with the settings lowest: "):
        built(type=f"{TRL}:make_limited", lowest=9)


def test_a_reward_may_be_a_number_of_numpy(built, tmp_path):
    episode = built(type=f"{TRL}:Float32").episode(SAMPLE)
    episode.begin("")
    episode.step(turn("guess", number=7))
    assert episode.end().reward == 0.25
    file = tmp_path / "own.py"
    file.write_text(
        "import numpy as np\n"
        "class Own:\n"
        "    def reset(self, sample): ...\n"
        "    def step(self, action): return '', True, np.array([0.5] * int(action), np.float32)\n"
    )
    environment = built(type=f"{file}:Own")
    one, two = environment.episode(SAMPLE), environment.episode(SAMPLE)
    for episode in (one, two):
        assert episode.begin("p").failure is None
    assert one.step(Action("1", (), last=False)).reward == 0.5
    status, why = two.step(Action("2", (), last=False)).failure
    assert status == Status.ERROR
    assert "returned no single number as reward" in why


def test_a_trl_environment_that_breaks_is_a_status(built):
    begun = built(type=f"{TRL}:Breaks").episode(SAMPLE).begin("")
    assert begun.failure == (Status.ERROR, "it cannot begin: RuntimeError: no server")
    environment = built(type=f"{TRL}:NumberEnv")
    dying, other = environment.episode(SAMPLE), environment.episode(SAMPLE)
    for episode in (dying, other):
        episode.begin("")
    assert dying.step(turn("crash")).failure == (Status.KILLED, "crash: its process ended")
    status, why = other.step(turn("guess", number=7)).failure
    assert status == Status.KILLED
    assert "its process was replaced" in why
    assert other.end().failure[0] == Status.KILLED


def test_openrlhfs_agent(built):
    environment = built(type=f"{AGENT}:AgentExecutor")
    episode = environment.episode(SAMPLE)
    assert episode.begin("<|im_start|>user\nWhich?").failure is None
    first = episode.step(Action("one", (), last=False))
    assert first.verbatim
    assert texts(first) == [
        "\n<|im_start|>user\nTurn 1, label 7.<|im_end|>\n<|im_start|>assistant\n"
    ]
    (message,) = episode.step(Action("two", (), last=False)).messages
    assert pixels(message.parts[1]).shape == (28, 56, 3)
    last = episode.step(Action("three", (), last=False))
    assert (last.messages, last.reward, last.cut) == ((), 0.5, False)
    assert first.reward == 0


def test_openrlhfs_step_has_the_modules_state_for_each_conversation(built):
    environment = built(type=f"{FILES}/agent_step.py:step")
    first, second = environment.episode(SAMPLE), environment.episode(SAMPLE)
    for episode in (first, second):
        assert episode.begin("p").failure is None
        assert "Again, 1." in texts(episode.step(Action("a", (), last=False)))[0]
    done = second.step(Action("b", (), last=False))
    assert (done.messages, done.reward) == ((), 7.0)


def test_what_an_agent_cannot_do_is_told(built):
    environment = built(type=f"{AGENT}:Misuse")
    for wrong, message in (
        ("prompt", "reset changed the observation"),
        ("sampling", "step returned sampling_params; those of the run are used"),
    ):
        episode = environment.episode(Sample("1", (), wrong))
        failure = episode.begin("p").failure or episode.step(Action("a", (), last=False)).failure
        assert failure[0] == Status.ERROR
        assert message in failure[1]


def test_verls_tools(built):
    environment = built(tools=(str(VERL), "calculate"))
    assert environment.tools == ("check_answer", "crop", "film", "calculate")
    meta = {
        "extra_info": {"tools_kwargs": {"check_answer": {"create_kwargs": {"ground_truth": "7"}}}}
    }
    sample = Sample("1", (), meta=meta)
    first, second = environment.episode(sample), environment.episode(sample)
    for episode in (first, second):
        assert episode.begin("").failure is None
    wrong = first.step(turn("check_answer", answer="6"))
    assert (texts(wrong), wrong.reward) == (["It is False, try 1"], 0)
    right = first.step(turn("check_answer", answer="7"))
    assert (texts(right), right.reward) == (["It is True, try 2"], -0.1)
    assert texts(second.step(turn("check_answer", answer="7"))) == ["It is True, try 1"]
    assert texts(second.step(turn("calculate", expression="2+2"))) == ["4"]
    assert [e.end().reward for e in (first, second)] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("text", "returned a str as reward"),
        ("nan", "returned nan as reward"),
        ("alone", "execute returned no (response, reward, metrics)"),
    ],
)
def test_what_a_verl_tool_broke_is_a_status_and_no_reward_of_0(built, answer, message):
    episode = built(tools=(str(VERL),)).episode(SAMPLE)
    assert episode.begin("").failure is None
    status, why = episode.step(turn("check_answer", answer=answer)).failure
    assert status == Status.ERROR
    assert message in why


def test_a_verl_tool_is_given_the_pictures_of_the_conversation(built):
    environment = built(tools=(str(VERL),))
    episode = environment.episode(SAMPLE)
    episode.begin("")
    images = [encoded(Image.fromarray(noise(60, 40, n))) for n in (1, 2)]
    shown = [Shown(MediaRef("image", data=image), (60, 40)) for image in images]
    action = turn("crop", bbox_2d=[10, 5, 30, 20])
    (message,) = episode.step(Action(action.text, shown, last=False)).messages
    assert np.array_equal(pixels(message.parts[0]), noise(60, 40, 1)[5:20, 10:30])
    assert message.parts[1] == TextPart("of 2")
    (call,) = episode.step(turn("film")).calls
    assert "may show pictures, and no video" in call.error


def test_a_schema_of_verl_is_told_as_it_is():
    schemas = {t.name: t.schema["function"] for t in described(ToolsConfig(tools=(str(VERL),)))}
    assert schemas["crop"]["parameters"]["properties"]["bbox_2d"] == {
        "type": "array",
        "items": {"type": "number"},
        "minItems": 4,
        "maxItems": 4,
        "description": "The part, as [x1, y1, x2, y2].",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tools: []", "has no list 'tools'"),
        ("tools: [{config: {}}]", "tools[0] has no class_name"),
        ("tools: [{class_name: nowhere.Tool}]", "No module named 'nowhere'; put its module beside"),
        ("tools: [{class_name: verl.tools.geo3k_tool.Geo3kTool}]", "'verl.tools.geo3k_tool'"),
        ("tools: [{class_name: x.T, config: {type: mcp}}]", "config.type is 'mcp'"),
        ("tools: [{class_name: verl.tools.base_tool.BaseTool}]", "has no method execute"),
    ],
)
def test_a_yaml_of_verl_that_cannot_be_used_is_told(tmp_path, text, message):
    file = tmp_path / "tools.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        described(ToolsConfig(tools=(str(file),)))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class E:\n    def step(self, action): ...", "it has no method reset; known are:"),
        ("class E:\n    def reset(self, sample): ...", "it has no method step; known are:"),
        ("class E:\n    def reset(self, a): ...\n    def step(self, a, b): ...", "of no form"),
        ("E = {'a': int}", "it is a dictionary of environments; name one of them"),
        ("def E(x): ...", "it is not a class, and cannot be called with no arguments"),
        ("class E:\n    def reset(self, **columns): ...", "it has no public method besides reset"),
    ],
)
def test_an_environment_of_no_form_is_told(tmp_path, source, message):
    file = tmp_path / "own.py"
    file.write_text(source)
    with pytest.raises(ValueError, match=re.escape(message)):
        build_environment(OwnEnvironment(type=f"{file}:E", workers=1))


def test_settings_that_a_class_does_not_take_are_told(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "class E:\n"
        "    def __init__(self, limit=3): ...\n"
        "    def reset(self, sample): ...\n"
        "    def step(self, action): return '', True, 1.0\n"
    )
    config = OwnEnvironment(type=f"{file}:E", limt=3, workers=1)
    with pytest.raises(ValueError, match=r"own.py:E: .*'limt'; its settings: limit"):
        build_environment(config)


def test_an_executor_with_a_loop_of_its_own_is_told():
    with pytest.raises(ValueError, match="execute samples turns itself"):
        described(OwnEnvironment(type=f"{AGENT}:OwnLoop"))


def test_trl_environment_may_have_a_tool_named_execute(built, tmp_path):
    file = tmp_path / "shell.py"
    file.write_text(
        "class Shell:\n"
        "    def reset(self, **columns): ...\n"
        "    def execute(self, command: str) -> str:\n"
        '        """Run a command.\n\n'
        "        Args:\n"
        "            command: The command.\n"
        '        """\n'
        "        return command.upper()\n"
    )
    episode = built(type=f"{file}:Shell").episode(SAMPLE)
    assert episode.begin("").failure is None
    assert texts(episode.step(turn("execute", command="ls"))) == ["LS"]


def test_a_class_is_no_tool():
    with pytest.raises(ValueError, match=r"name tools of verl by their \.yaml file, and an env"):
        described(ToolsConfig(tools=(f"{FILES}/verl_tools.py:CropTool",)))


def test_a_parser_is_for_calls(tmp_path):
    config = OwnEnvironment(type=f"{AGENT}:AgentInstance", parser="p.py:f", workers=1)
    with pytest.raises(ValueError, match=r"environment\.parser"):
        build_environment(config)


def test_a_reward_function_that_reads_environments_is_told():
    def reward_func(environments, **kwargs):
        return [environment.reward for environment in environments]

    with pytest.raises(ValueError, match="their attribute reward"):
        detect(reward_func, {})
