"""The commands: what they print, what they write, and one line with exit code 2 on bad input."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from datasets_prep.ask import Question
from datasets_prep.data_cli import app, main
from datasets_prep.frames import list_frames
from datasets_prep.outputs import shares
from datasets_prep.select import rule
from datasets_prep.server import Server, in_order
from mmr1.data.record import read_records, write_records
from mmr1.rewards.judges.replies import Reply
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.images import load_image
from tests.vision.media import encoded, noise, write_video


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty records over ten pictures: three questions about each."""
    (tmp_path / "images").mkdir()
    samples = []
    for index in range(30):
        path = tmp_path / f"images/{index // 3}.png"
        path.write_bytes(encoded(Image.fromarray(noise(40 + index // 3, 40, index // 3))))
        question = (MediaRef("image", path), TextPart(f"Question {index}?"))
        meta = {"level": index % 5}
        samples.append(
            Sample(f"s{index}", (Message("user", question),), str(index), "math", "set", meta)
        )
    write_records(tmp_path / "records.jsonl", samples)
    return tmp_path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_and_show_name_every_dataset(folder: Path) -> None:
    listed = run("list")
    for name in ("geometry3k", "charades_sta", "digits", "video"):
        assert name in listed
    assert "non-commercial" in run("show", "charades_sta")
    assert "--input" in run("show", "easyr1")
    assert '"id": "s0"' in run("show", folder / "records.jsonl")
    assert '"path": "images/0.png"' in run("show", folder / "records.jsonl")
    with pytest.raises(ValueError, match="is neither a file nor a dataset"):
        run("show", "mathvesta")


def test_validate(folder: Path) -> None:
    assert "30 records are valid" in run("validate", folder / "records.jsonl")
    (folder / "images/4.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"3 problem\(s\) in 30 records"):
        run("validate", folder)


def test_a_deep_validation_decodes_videos(tmp_path: Path) -> None:
    """One whose last frame is cut off passes by its packets."""
    clip = write_video(tmp_path / "clip.mp4", options={"movflags": "faststart"})
    message = {"role": "user", "content": "<video>What moves?"}
    row = {"version": 1, "id": "a", "messages": [message], "videos": ["clip.mp4"], "answer": "bar",
           "task": "exact"}  # fmt: skip
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert "1 record is valid" in run("validate", tmp_path / "rows.jsonl", "--deep")
    clip.write_bytes(clip.read_bytes()[:-8])
    assert "1 record is valid" in run("validate", tmp_path / "rows.jsonl")
    with pytest.raises(ValueError, match=r"1 problem\(s\) in 1 records"):
        run("validate", tmp_path / "rows.jsonl", "--deep")


def test_stats_counts_and_draws(folder: Path) -> None:
    printed = run("stats", folder, "--png", folder / "stats.png")
    assert "math: 30" in printed
    assert "1 image: 30" in printed
    assert "number: 30" in printed
    assert "min 4  median" in printed
    assert load_image(MediaRef("image", folder / "stats.png")).size == (1000, 700)


def test_split_keeps_the_questions_of_a_picture_together(folder: Path) -> None:
    run("split", folder / "records.jsonl", "train=0.7", "eval=0.3", "--output", folder / "parts")
    splits = {p: read_records(folder / f"parts/{p}.jsonl") for p in ("train", "eval")}
    assert {p: len(s) for p, s in splits.items()} == {"train": 21, "eval": 9}
    digests = {p: {s.media[0].digest() for s in samples} for p, samples in splits.items()}
    assert not digests["train"] & digests["eval"]
    with pytest.raises(ValueError, match="do not add up to 1"):
        run("split", folder / "records.jsonl", "a=0.7", "--output", folder / "x")
    with pytest.raises(ValueError, match="not of the form name=share"):
        run("split", folder / "records.jsonl", "a", "--output", folder / "x")
    with pytest.raises(ValueError, match=r"train\.jsonl exists"):
        run("split", folder / "records.jsonl", "train=1", "--output", folder / "parts")


def test_split_takes_counts_of_records(folder: Path, tmp_path: Path) -> None:
    run("make", "digits", "--output", tmp_path / "digits")
    path = tmp_path / "digits/eval.jsonl"
    run("split", path, "a=120", "b=17", "--output", tmp_path / "parts")
    sizes = {p: len(read_records(tmp_path / f"parts/{p}.jsonl")) for p in "ab"}
    assert sizes == {"a": 120, "b": 17}
    with pytest.raises(ValueError, match="has 500 records, and the splits need 1 more"):
        run("split", path, "a=400", "b=101", "--output", tmp_path / "more")


def test_records_go_to_the_standard_output(folder: Path, monkeypatch, capfdbinary) -> None:
    monkeypatch.chdir(folder)
    rule = ["filter", "records.jsonl", "--rule", "images == 1", "--output"]
    run(*rule, "file.jsonl")
    for _ in range(2):  # it is never there already
        capfdbinary.readouterr()
        monkeypatch.setattr(sys, "argv", ["mmr1-data", *rule, "-"])
        with pytest.raises(SystemExit):
            main()
        written, said = capfdbinary.readouterr()
        assert written == Path("file.jsonl").read_bytes()
        assert b"records" in said


def test_mix_draws_by_share_without_repeats(folder: Path, tmp_path: Path) -> None:
    run("make", "digits", "--output", tmp_path / "digits")
    sources = [f"{folder / 'records.jsonl'}=1", f"{tmp_path / 'digits/eval.jsonl'}=2"]
    run("mix", *sources, "--count", 60, "--output", tmp_path / "mixed/m.jsonl")
    mixed = read_records(tmp_path / "mixed/m.jsonl")
    assert len({s.id for s in mixed}) == 60
    assert sum(s.source == "set" for s in mixed) == 20
    assert all(m.path.is_relative_to(tmp_path / "mixed") for s in mixed for m in s.media)
    assert "60 records are valid" in run("validate", tmp_path / "mixed")
    with pytest.raises(ValueError, match="has 30 samples; its share needs 300"):
        run("mix", *sources, "--count", 900, "--output", tmp_path / "n.jsonl")


def test_leakage_is_told(folder: Path) -> None:
    run("split", folder / "records.jsonl", "train=0.7", "eval=0.3", "--output", folder / "parts")
    whole, train, test = (folder / f"{n}.jsonl" for n in ("records", "parts/train", "parts/eval"))
    with pytest.raises(ValueError, match=r"9 of 9 samples of \S+eval\.jsonl are in"):
        run("leakage", whole, test)
    told = run("leakage", train, test)
    assert "none of 9 samples" in told


def test_what_looks_alike_is_no_leak(folder: Path, tmp_path: Path) -> None:
    """The exit code is 0; the samples are listed to be looked at."""
    picture = Image.fromarray(noise(6, 6)).resize((240, 200), Image.Resampling.BICUBIC)
    for name, image in (("train", picture), ("test", picture.resize((120, 100)))):
        ref = MediaRef("image", data=encoded(image))
        write_records(
            tmp_path / f"{name}.jsonl",
            [Sample(f"of-{name}", (Message("user", (ref, TextPart("What?"))),))],
        )
    told = run("leakage", tmp_path / "train.jsonl", tmp_path / "test.jsonl")
    assert "1 of 1 samples" in told
    assert "look like samples" in told
    assert "none of 1 samples" in told
    (row,) = [line for line in told.splitlines() if line.startswith("of-test")]
    assert row.split() == ["of-test", "of-train", "similar", "picture"]


def test_filter_by_rule(folder: Path) -> None:
    wish = "meta.level >= 3 and width > 42 and images == 1 and task == 'math'"
    run("filter", folder, "--rule", wish, "--output", folder / "kept/k.jsonl")
    selected = read_records(folder / "kept/k.jsonl")
    assert [s.id for s in selected] == [f"s{i}" for i in range(9, 30) if i % 5 >= 3]
    with pytest.raises(ValueError, match="the rule 'width >'"):
        rule("width >")
    with pytest.raises(ValueError, match=r"\.jsonl:1: the rule 'bbox > 3' fails: 'bbox' is undef"):
        run("filter", folder, "--rule", "bbox > 3", "--output", folder / "x.jsonl")
    with pytest.raises(ValueError, match="nothing to filter by"):
        run("filter", folder, "--output", folder / "x.jsonl")


@pytest.mark.parametrize(
    "wish", ["answer|int / 0", "range(9**9)|list", "'%d %(a)s' % 3", "'{a}'.format(b=1)"]
)
def test_a_rule_that_cannot_be_evaluated(folder: Path, wish: str) -> None:
    with pytest.raises(ValueError, match=r"the rule .* fails: "):
        run("filter", folder, "--rule", wish, "--output", folder / "x.jsonl")


@pytest.mark.parametrize("words", [["a=nan", "b=0.1"], ["a=inf"], ["a=0"], ["a=1", "a=0.5"], ["a"]])
def test_shares_that_say_nothing(words: list[str]) -> None:
    assert shares(["train=0.9", "a=b=0.1"]) == {"train": 0.9, "a=b": 0.1}
    with pytest.raises(ValueError, match=r"is not of the form name=share|'a' has two shares"):
        shares(words)


@pytest.mark.parametrize("prompt", ["Say {{ answer + 1 }}", "Say {{ 1 / 0 }}", "{{ nothing }}"])
def test_a_prompt_that_cannot_be_rendered(prompt: str) -> None:
    sample = Sample("s", (Message("user", (TextPart("Why?"),)),), "4", "math", "set", {})
    with pytest.raises(ValueError, match="--prompt fails: "):
        Question(prompt).message(sample)


@pytest.fixture
def served(folder: Path) -> Iterator[tuple[str, list[dict]]]:
    """A model that reads the question number and is right on even ones, half right on the rest.

    Without a picture it knows no answer to multiples of 3.
    """
    requests: list[dict] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body)
            body["key"] = self.headers["Authorization"]
            *shown, said = body["messages"][-1]["content"]
            number = int(said["text"].removeprefix("Question ").rstrip("?"))
            answers = [number if number % 2 == 0 or i % 2 else -1 for i in range(body["n"])]
            replies = [f"<answer>{n}</answer>" for n in answers]
            if not shown and number % 3 == 0:
                replies = ["I do not know."] * body["n"]
            choices = [{"message": {"content": reply}} for reply in replies]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": choices}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", requests
    server.shutdown()
    server.server_close()


def test_filter_by_pass_rate(
    folder: Path, served: tuple[str, list[dict]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, requests = served
    asked = ("filter", folder, "--server", address, "--model", "m", "--samples", 4,
             "--api-key-env", "TEACHER_KEY", "--output", folder / "kept/k.jsonl")  # fmt: skip
    with pytest.raises(ValueError, match="the environment variable TEACHER_KEY is not set"):
        run(*asked)
    monkeypatch.setenv("TEACHER_KEY", "open sesame")
    run(*asked)
    assert {body["key"] for body in requests} == {"Bearer open sesame"}
    selected = read_records(folder / "kept/k.jsonl")
    assert [s.id for s in selected] == [f"s{i}" for i in range(30) if i % 2]
    assert {s.meta["pass_rate"] for s in selected} == {0.5}
    assert len(requests) == 30
    image = requests[0]["messages"][0]["content"][0]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    with pytest.raises(ValueError, match=r"no answers for s0: http://127\.0\.0\.1:9/v1"):
        run("filter", folder, "--server", "http://127.0.0.1:9/v1", "--output", folder / "y.jsonl")


def test_what_needs_no_picture_is_dropped(folder: Path, served: tuple[str, list[dict]]) -> None:
    address, requests = served
    said = run("filter", folder, "--server", address, "--model", "m", "--samples", 4, "--high", 1,
               "--needs-picture", "--output", folder / "kept/k.jsonl")  # fmt: skip
    assert "40 of 240 completions have no answer that the reward finds, and count 0" in said
    selected = read_records(folder / "kept/k.jsonl")
    assert [s.id for s in selected] == [f"s{i}" for i in range(0, 30, 3)]
    assert [s.meta["pass_rate"] for s in selected] == [0.5 if i % 2 else 1.0 for i in range(10)]
    assert {s.meta["pass_rate_without_media"] for s in selected} == {0.0}
    assert all(s.media for s in selected)
    assert len(requests) == 60
    with pytest.raises(ValueError, match="--needs-picture compares pass rates: give --server"):
        run("filter", folder, "--rule", "images", "--needs-picture", "--output", folder / "z.jsonl")


def test_completions_are_scored_by_the_reward_that_is_named(
    folder: Path, served: tuple[str, list[dict]], tmp_path: Path
) -> None:
    address, requests = served
    (tmp_path / "mine.py").write_text(
        "def odd(completion, answer):\n    return float(int(completion[8:-9]) % 2)\n"
    )
    asked = ("filter", folder, "--server", address, "--model", "m", "--samples", 2, "--low", 1,
             "--high", 1)  # fmt: skip
    run(*asked, "--reward", f"{tmp_path / 'mine.py'}:odd", "--output", folder / "kept/k.jsonl")
    selected = read_records(folder / "kept/k.jsonl")
    assert [s.id for s in selected] == [f"s{i}" for i in range(30) if i % 2]
    requests.clear()
    run(*asked, "--prompt-template", "deepseek_r1_style", "--output", folder / "kept/t.jsonl")
    assert {body["messages"][0]["role"] for body in requests} == {"system"}


def test_an_error_ends_the_requests_under_way() -> None:
    """Whoever reads the replies fails while others are awaited: nothing waits for these."""
    release = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "0" not in json.dumps(body["messages"]):
                release.wait()
            self.send_response(200)
            self.end_headers()
            choice = {"message": {"content": None}, "finish_reason": "length"}  # cut reasoning
            self.wfile.write(json.dumps({"choices": [choice]}).encode())  # whatever n is

        def log_message(self, *_: object) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    threading.Thread(target=httpd.serve_forever, daemon=True).start()

    def replies(number: int) -> list[Reply]:
        return server.replies([Message("user", (TextPart(str(number)),))], 3, "it")

    with Server(f"http://127.0.0.1:{httpd.server_port}/v1", "m") as server:
        answered = in_order([0, *[1] * 40], replies)
        assert next(answered) == (0, [Reply("", 0, 0, cut=True)] * 3)
    workers = [t for t in threading.enumerate() if t.name.startswith("ThreadPoolExecutor")]
    assert workers
    answered.close()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    with pytest.raises(RuntimeError, match="no longer asked"):
        replies(0)
    release.set()
    httpd.shutdown()
    httpd.server_close()


MOST_TOKENS = 2048


@pytest.fixture
def answering() -> Iterator[tuple[str, list[dict], list[bool]]]:
    """Says its question back; cuts off 3, says a placeholder to 4, fails at first on 5."""
    requests: list[dict] = []
    broken = [True]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = body["messages"][-1]["content"][-1]["text"]
            if "Question 5?" in text and broken[0]:
                self.send_error(500)
                return
            requests.append(body)
            if body["max_tokens"] > MOST_TOKENS:
                self.send_response(400)
                self.end_headers()
                self.wfile.write(b'{"error": {"message": "the context has 2048 tokens"}}')
                return
            end = "length" if "Question 3?" in text else "stop"
            said = "<image>" if "Question 4?" in text else f"You ask: {text}"
            choice = {"message": {"content": said}, "finish_reason": end}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"choices": [choice]}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", requests, broken
    server.shutdown()
    server.server_close()


def test_what_a_server_refuses_is_told(
    folder: Path, answering: tuple[str, list[dict], list[bool]]
) -> None:
    address, requests, _ = answering
    given = ("filter", folder, "--server", address, "--max-tokens", 4096)
    with pytest.raises(ValueError, match=r"HTTP 400 .*the context has 2048 tokens"):
        run(*given, "--output", folder / "x.jsonl")
    asked = [body["messages"][-1]["content"][-1]["text"] for body in requests]
    assert len(asked) == len({*asked})  # a refusal is final


def test_ask_in_steps(folder: Path, answering: tuple[str, list[dict], list[bool]]) -> None:
    address, requests, broken = answering
    prompts = {
        "a": "Describe for: {{ question }}",
        "b": "{{ meta.seen }} Solve {{ question }}",
        "c": "Is {{ reply }} {{ answer }}?",
        "d": "{{ nothing }}",
    }
    for name, text in prompts.items():
        (folder / f"{name}.txt").write_text(text)
    of = ("--server", address, "--model", "m")
    out = folder / "kept"
    first = ("ask", folder, *of, "--prompt", folder / "a.txt", "--into", "seen")
    with pytest.raises(ValueError, match=r"no answers for s5: .*HTTP 500"):
        run(*first, "--output", out / "a.jsonl")
    assert not (out / "a.jsonl").exists()
    (part,) = out.glob("*.part")
    part.write_bytes(part.read_bytes() + b'{"id": "s5", "mess')  # as if it had been killed then
    before, broken[0] = len(requests), False
    told = run(*first, "--output", out / "a.jsonl")
    assert "29 of 30 records" in told
    assert len(requests) == before + 30 - 5  # s0 to s4 were done
    assert [p.name for p in out.glob("*.part")] == []
    image, asked = requests[0]["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert asked["text"].startswith("Describe for: Question ")

    run("ask", out / "a.jsonl", *of, "--prompt", folder / "b.txt", "--text-only",
        "--output", out / "b.jsonl")  # fmt: skip
    written = {s.id: s for s in read_records(out / "b.jsonl")}
    assert "s3" not in written  # cut off
    assert written["s4"].meta["seen"] == "<image>"  # text, as the reply has it
    assert len(written) == 29
    assert len(requests[-1]["messages"][0]["content"]) == 1
    seen = written["s7"].meta["seen"]
    assert seen == "You ask: Describe for: Question 7?"
    assert written["s7"].messages[-1].role == "assistant"
    assert written["s7"].messages[-1].text == f"You ask: {seen} Solve Question 7?"
    assert len(written["s7"].media) == 1

    run("ask", out / "b.jsonl", *of, "--prompt", folder / "c.txt", "--into", "verdict",
        "--output", out / "c.jsonl")  # fmt: skip
    run("filter", out / "c.jsonl", "--rule", "'Question 7?' in meta.verdict",
        "--output", out / "d.jsonl")  # fmt: skip
    (kept,) = read_records(out / "d.jsonl")
    assert kept.meta["verdict"].startswith(f"You ask: Is {kept.messages[-1].text} ")
    with pytest.raises(ValueError, match="meta has 'seen'; name another column by --into"):
        run("ask", out / "a.jsonl", *of, "--prompt", folder / "a.txt", "--into", "seen",
            "--output", out / "e.jsonl")  # fmt: skip
    with pytest.raises(ValueError, match=r"\.jsonl:1: --prompt fails: 'nothing'"):
        run("ask", folder, *of, "--prompt", folder / "d.txt", "--output", out / "e.jsonl")


def test_a_folder_of_frames_becomes_a_video(tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    for index in range(6):
        (tmp_path / f"clip/{index:03d}.jpg").write_bytes(
            encoded(Image.fromarray(noise(60, 40, index)), "JPEG")
        )
    path = list_frames(tmp_path / "clip", fps=4.0, every=2)
    listed = json.loads(path.read_text())
    assert listed["fps"] == 2.0
    assert [f["path"] for f in listed["frames"]] == [f"clip/00{i}.jpg" for i in (0, 2, 4)]
    row = {"problem": "<video>What moves?", "videos": ["clip.frames.json"], "answer": "a sloth"}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    run("convert", "easyr1", "--input", tmp_path / "rows.json", "--output", tmp_path / "out",
        "--workers", 1)  # fmt: skip
    assert "1 record is valid" in run("validate", tmp_path / "out")
    with pytest.raises(ValueError, match="holds no images"):
        list_frames(tmp_path, 1.0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["validate", "none.jsonl"],
        ["convert", "easyr1", "--input", "none", "--output", "out"],
        ["make", "nothing", "--output", "out"],
        ["stats", "none"],
        ["leakage", "none", "none"],
    ],
    ids=lambda a: a[0],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["mmr1-data", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stderr", [True, False])
def test_a_folder_that_cannot_be_made_is_one_line(stderr, tmp_path, monkeypatch, capsys):
    """Also where that line cannot be written."""
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr("sys.argv", ["mmr1-data", "make", "digits", "--output", f"{file}/below"])
    with Path("/dev/full").open("w") as full:
        if not stderr:
            monkeypatch.setattr("sys.stderr", full)
        with pytest.raises(SystemExit) as caught:
            main()
    assert caught.value.code == 1
    if stderr:
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: [Errno 20] Not a directory: '{file}/")
