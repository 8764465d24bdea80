"""The report in headless Chromium: what a person sees and can do.

Needs ``pip install playwright`` and a Chromium: Playwright's own, or the one that the environment
variable CHROMIUM names.
"""

from __future__ import annotations

import io
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from datasets_prep.generators.video import appearing_square, write_mp4
from mmr1.report import live
from mmr1.report.page import write_report
from mmr1.report.run_reader import open_run
from tests.report.run_files import HOSTILE, completion, image, prompt, write_run
from tests.report.serving import serving

pytestmark = pytest.mark.browser
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

GOLD, PREDICTED = (0, 163, 90), (232, 89, 12)  # --gold and --predicted of report.css


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as tools:
        try:
            browser = tools.chromium.launch(executable_path=os.environ.get("CHROMIUM"))
        except playwright.Error as error:
            pytest.skip(f"no Chromium: {error.message.splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture
def requests() -> list[str]:
    return []


@pytest.fixture
def page(browser: Any, requests: list[str]) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: pytest.fail(f"the page raised {error}"))
    yield page
    page.close()


def write(tmp_path: Path, *folders: Path) -> Path:
    target = tmp_path / "report.html"
    write_report([open_run(folder) for folder in folders], target, 10**7)
    return target


def show(page: Any, file: Path) -> None:
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-ready]")


def note(page: Any) -> str:
    return page.inner_text("#rollouts .hint")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Three steps of two prompts: four completions each, one of them without a valid reward."""
    texts = [HOSTILE, "<think>odd</think><answer>6</answer>", "7", "late"]

    def group(name: str, step: int, task: str) -> dict[str, Any]:
        rewards = [1.0, 0.5, 0.25 * step, None]
        completions = [completion(t, r) for t, r in zip(texts, rewards, strict=True)]
        completions[2]["truncated"] = True
        return prompt(name, completions, task=task, media=[image(tmp_path / "x.png")])

    rollouts = {s: [group("a", s, "math"), group("b", s, "count")] for s in (1, 2, 3)}
    dropped = [{"row": f"rows.jsonl:{n}", "reason": "<b>no</b> picture"} for n in range(120)]
    return write_run(tmp_path / "mixed", rollouts, quarantined=dropped)


def test_curves_are_drawn_and_tell_their_numbers(page, tmp_path, mixed, requests):
    show(page, write(tmp_path, mixed))
    charts = page.locator(".charts figure")
    shown = charts.locator("figcaption").all_inner_texts()[:2]
    assert shown == ["reward and its components", "entropy, nats per token"]
    assert "reward/frac_zero_std 0.5" in page.inner_text("#curves > .hint")  # it never changed
    assert charts.nth(0).locator("path.raw").count() == 0  # of four steps nothing is smoothed
    assert charts.nth(0).locator("circle.value").count() == 8
    assert charts.nth(0).locator("path.mean").count() == 2
    frame = charts.nth(0).locator("svg").bounding_box()
    page.mouse.move(frame["x"] + frame["width"] - 12, frame["y"] + 50)  # the last step
    readout = charts.nth(0).locator(".readout").inner_text().split("\n")
    assert readout == ["step 4", "reward/mean 1", "rewards/math/mean 1"]
    page.get_by_role("button", name="rewards/math/mean").click()
    assert charts.nth(0).locator("path.mean").count() == 1
    assert [url for url in requests if not url.startswith("data:")] == [
        (tmp_path / "report.html").as_uri()
    ]


def test_filters(page, tmp_path, mixed):
    show(page, write(tmp_path, mixed))
    assert note(page) == "6 prompts, 24 completions"
    page.select_option("[name=step]", "2")
    assert note(page) == "2 prompts, 8 completions"
    page.select_option("[name=task]", "count")
    assert note(page) == "1 prompt, 4 completions"
    page.select_option("[name=status]", "!")
    assert note(page) == "1 prompt, 1 completion"
    assert "math: not decided within 2 s" in page.inner_text(".groups")
    page.select_option("[name=status]", "truncated")
    assert page.locator(".groups .text").all_inner_texts() == ["7truncated"]
    page.select_option("[name=status]", "")
    page.fill("[name=low]", "0.5")
    page.fill("[name=high]", "0.6")
    assert note(page) == "1 prompt, 2 completions"
    page.fill("[name=low]", "")
    page.fill("[name=high]", "")
    page.fill("[name=words]", "ODD")
    assert page.locator(".groups .text").count() == 1


def test_markup_in_a_completion_is_text(page, tmp_path, mixed):
    show(page, write(tmp_path, mixed))
    first = page.locator(".groups .text").first
    assert first.inner_text() == HOSTILE
    assert first.locator(".thought").all_inner_texts()[-2] == HOSTILE.split("think>")[
        1
    ].removesuffix("</")
    assert first.locator("span.answer:not(.tag)").inner_text() == "&lt;7&gt;"
    assert page.title() == "/".join(mixed.parts[-2:])
    assert page.locator("#quarantined td", has_text="<b>no</b>").count() == 50
    page.get_by_role("button", name="show more").click()
    assert page.locator("#quarantined td", has_text="<b>no</b>").count() == 100


def test_faults_have_a_table_where_there_were_any(page, tmp_path):
    faults = {"reward/math/timeout": 3, "engine/<b>died</b>": 1}
    met, none = write_run(tmp_path / "met", {}, faults=faults), write_run(tmp_path / "none", {})
    show(page, write(tmp_path, met, none))
    cells = page.locator("#faults tbody td").all_inner_texts()
    assert cells == ["engine/<b>died</b>", "1", "–", "reward/math/timeout", "3", "–"]
    assert page.locator("#faults b").count() == 0
    show(page, write(tmp_path, none))
    assert page.locator("#faults").inner_html() == ""
    assert "Faults met" not in page.inner_text("body")


def test_one_prompt_over_steps_and_two_runs(page, tmp_path, mixed):
    later = [prompt("a", [completion("7")]), prompt("c", [completion("8")])]
    other = write_run(tmp_path / "other", {2: later}, seed=1)
    show(page, write(tmp_path, mixed, other))
    assert page.locator(".charts figure").first.locator("path.mean[stroke-dasharray]").count() == 2
    assert page.locator("#configuration tr.differs td:first-child").all_inner_texts() == ["seed"]
    page.get_by_role("button", name="follow over steps").first.click()
    assert "of prompt a; mean reward by step — 1: 0.5833 2: 0.75 3: 0.75" in " ".join(
        note(page).split()
    )
    assert page.locator(".groups > div").count() == 3
    pair = page.locator(".groups > .pair")
    names = ["/".join(folder.parts[-2:]) for folder in (mixed, other)]
    heads = pair.locator("article > header > span:nth-child(2)").all_inner_texts()
    assert [head.strip() for head in heads] == [f"step 2 · {name} · math" for name in names]
    assert pair.locator(".change").inner_text() == (
        "reward 0.6667 → 1 · format 1 → 1 · math 0.6667 → 1 · tokens 1.25 → 1 · "
        "3 answers: none ×2, &lt;7&gt;, 6 → 1 answer: none"
    )


def pixels_near(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """``[H, W]`` bool."""
    return np.abs(picture.astype(int) - colour).max(axis=-1) < 40


def test_boxes_are_where_they_should_be(page, tmp_path):
    shown = image(tmp_path / "x.png", (320, 160), seen=[160, 80])
    answer = completion("<answer>[100, 10, 150, 40]</answer>", 0.0)
    group = prompt("a", [answer], answer=[[20, 40, 120, 140]], task="iou", media=[shown])
    functions = {"iou": {"space": "resized"}}
    show(page, write(tmp_path, write_run(tmp_path / "run", {1: [group]}, functions=functions)))
    page.hover(".groups tbody tr")  # brings out the box of this completion
    frame = page.locator(".picture").bounding_box()
    assert (frame["width"], frame["height"]) == (320, 160)  # pixels are those of the original
    left, top = round(frame["x"]), round(frame["y"])
    whole = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    picture = whole[top : top + 160, left : left + 320]
    for colour, (x1, y1, x2, y2) in (GOLD, (20, 40, 120, 140)), (PREDICTED, (200, 20, 300, 80)):
        rows, columns = np.nonzero(pixels_near(picture, colour))
        edges = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        assert np.abs(np.subtract(edges, (x1, y1, x2, y2))).max() <= 2, (colour, edges)
    assert not pixels_near(picture, GOLD)[60:120, 40:100].any()  # an outline, not a patch


def test_frames_of_a_video(page, tmp_path):
    frames, fps = appearing_square(np.random.default_rng(0), 2, 5)
    write_mp4(tmp_path / "v.mp4", frames, fps)
    clip = {
        "kind": "video", "path": str(tmp_path / "v.mp4"), "digest": "ab", "seen": [56, 56],
        "options": {"fps": 1.0},
    }  # fmt: skip
    group = prompt("a", [completion("<answer>[2, 5]</answer>")], task="tiou", media=[clip])
    show(page, write(tmp_path, write_run(tmp_path / "run", {1: [group]})))
    images = page.locator(".frames img")
    images.first.wait_for()
    assert images.count() == len(frames) == 8
    times = page.locator(".frames figcaption").all_inner_texts()
    assert times == [f"{second} s" for second in range(8)]
    yellow = []
    for index in range(8):
        picture = np.asarray(Image.open(io.BytesIO(images.nth(index).screenshot())).convert("RGB"))
        yellow.append(bool(pixels_near(picture, (240, 220, 80)).any()))
    assert yellow == [False, False, True, True, True, False, False, False]


def test_live_follows_the_run(page, tmp_path, mixed, monkeypatch):
    monkeypatch.setattr(live, "SETTLED_S", 0.0)
    with serving(mixed) as address:
        page.goto(f"{address}/")
        page.wait_for_selector("body[data-ready]")
        assert page.locator(".picture img").count() > 0
        source = mixed / "rollouts/step_000003.jsonl"
        (mixed / "rollouts/step_000004.jsonl").write_text(source.read_text())
        page.get_by_text("8 prompts, 32 completions").wait_for()


def overflow(page: Any) -> int:
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(page, tmp_path, mixed, width, scheme):
    long = completion("x" * 5000 + " word" * 2000, id="y" * 300)
    turns = [{"role": "tool", "text": "z" * 400, "media": [image(tmp_path / "big.png", (2000, 9))]}]
    wide = image(tmp_path / "wide.png", (1200, 300))
    group = prompt("n" * 200, [long, completion("7", turns=turns)], media=[wide])
    other = write_run(tmp_path / ("o" * 60), {1: [group]}, data={"train": "d" * 200})
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 844})
    show(page, write(tmp_path, mixed, other))
    page.locator(".picture img").last.wait_for()
    assert page.locator("#configuration details[open]").count() == 1
    assert overflow(page) <= 0
    page.locator("#configuration summary").click()
    assert overflow(page) <= 0


def test_where_filters_by_components(page, tmp_path):
    rewards = [{"mine": 1.0, "true": 0.0}, {"mine": 1.0, "true": 1.0}, {"mine": 0.25, "true": None}]
    rows = [completion(f"<answer>{i}</answer>", 0.5, components=c) for i, c in enumerate(rewards)]
    show(page, write(tmp_path, write_run(tmp_path / "run", {1: [prompt("a", rows)]})))
    for where, answers in {
        "mine = 1 and true = 0": ["0"],
        "mine=1": ["0", "1"],
        "mine < 1": ["2"],
        "true = none": ["2"],
        "true != none AND reward >= 0.5": ["0", "1"],
        "tokens > 100": [],
        "other = 1": [],
    }.items():
        page.fill("[name=where]", where)
        assert page.locator(".groups span.answer:not(.tag)").all_inner_texts() == answers, where
    page.fill("[name=where]", "mine is 1")
    assert page.locator("[name=where].bad").count() == 1


def test_an_address_keeps_what_is_shown(page, tmp_path, mixed):
    file = write(tmp_path, mixed)
    show(page, file)
    page.select_option("[name=step]", "3")
    page.fill("[name=words]", "7")
    page.select_option("[name=order]", "best")
    expected = page.locator(".groups .text").all_inner_texts()
    address = page.url
    assert address.endswith("#rollouts?step=3&words=7&order=best")
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    assert page.locator(".groups .text").all_inner_texts() == expected
    assert {text.lower() for text in page.locator(".groups mark").all_inner_texts()} == {"7"}
    link = page.locator("article a", has_text="link").last.get_attribute("href")
    assert link == "#rollouts?step=3&id=b"
    page.goto("about:blank")
    page.goto(file.as_uri() + link)
    page.wait_for_selector("body[data-ready]")
    assert page.locator("article > header b").all_inner_texts() == ["b"]


def test_two_steps_of_a_prompt_beside_each_other(page, tmp_path, mixed):
    show(page, write(tmp_path, mixed))
    page.get_by_label("beside step").first.select_option("3")
    assert note(page).startswith("1 prompt, 8 completions of prompt a")
    heads = page.locator(".pair article > header > span:nth-child(2)").all_inner_texts()
    assert [head.strip() for head in heads] == ["step 1 · math", "step 3 · math"]
    assert page.inner_text(".change").startswith("reward 0.5833 → 0.75 ·")


def test_the_keyboard_turns_pages_and_walks_prompts(page, tmp_path):
    groups = [prompt(f"p{n:02}", [completion("7")]) for n in range(20)]
    show(page, write(tmp_path, write_run(tmp_path / "run", {1: groups})))
    first = page.locator("article > header b").first

    def current() -> str:
        return page.evaluate("document.activeElement.querySelector('header b')?.textContent")

    page.keyboard.press("j")
    page.keyboard.press("j")
    assert current() == "p01"
    page.keyboard.press("k")
    assert current() == "p00"
    page.keyboard.press("n")
    assert (first.inner_text(), page.url.rpartition("#")[2]) == ("p08", "rollouts?page=1")
    page.keyboard.press("p")
    assert first.inner_text() == "p00"
    page.keyboard.press("/")
    page.keyboard.type("p0n")  # keys are letters again in a field
    assert page.input_value("[name=words]") == "p0n"
    assert note(page) == "0 prompts, 0 completions"


def test_a_long_completion_is_folded_until_it_is_asked_for(page, tmp_path):
    text = "<think>" + "a " * 3000 + "needle " + "b " * 3000 + "</think><answer>7</answer>"
    group = prompt("a", [completion(text) for _ in range(10)])
    show(page, write(tmp_path, write_run(tmp_path / "run", {1: [group]})))
    folded = page.locator(".folded")
    assert folded.count() == 8
    page.get_by_role("button", name="2 more completions").click()
    assert folded.count() == 10
    assert folded.first.locator("span.answer:not(.tag)").inner_text() == "7"
    assert page.evaluate("document.documentElement.scrollHeight") < 6000
    page.get_by_role("button", name="more characters").first.click()
    assert "needle" in folded.first.inner_text()
    page.fill("[name=words]", "needle")
    assert page.locator(".groups mark").all_inner_texts() == ["needle"] * 8


def test_tokens_that_need_their_picture_are_coloured_by_how_much(page, tmp_path):
    pieces = [["<answer>", 0.0], ["<b>7", 1.2], [" of", 0.3], [" 9", -0.2], ["</answer>", 0.01]]
    text = "".join(piece for piece, _ in pieces)
    rows = [completion(text, vision_use=pieces), completion(text)]
    show(page, write(tmp_path, write_run(tmp_path / "run", {1: [prompt("a", rows)]})))
    coloured = page.locator(".looks")
    assert coloured.all_inner_texts() == ["<b>7", " of", "</answer>"]
    assert page.locator("td.text").first.inner_text() == text
    assert "up to 1.2 nats" in page.locator("article thead").inner_text()
    titles = [coloured.nth(i).get_attribute("title") for i in range(3)]
    assert [title.split()[0] for title in titles] == ["−1.2", "−0.3", "−0.01"]
    alpha = "e => +getComputedStyle(e).backgroundColor.match(/[/,] ?([\\d.]+)\\)/)[1]"
    assert [coloured.nth(i).evaluate(alpha) for i in range(2)] == pytest.approx([0.6, 0.15])
    page.fill("[name=words]", "of")
    assert page.locator(".groups mark").all_inner_texts() == ["of", "of"]


def test_a_finding_leads_to_the_completions_that_show_it(page, tmp_path):
    cut = [completion("<think>so", 0.0, truncated=True), completion("<answer>7</answer>")]
    rollouts = {step: [prompt("a", cut)] for step in (2, 4, 6)}
    metrics = [
        {"step": s, "completions/frac_truncated": 0.0 if s < 3 else 0.5} for s in range(1, 9)
    ]
    folder = write_run(tmp_path / "run", rollouts, metrics=metrics)
    show(page, write(tmp_path, folder))
    (finding,) = page.locator(".findings li").all()
    assert finding.inner_text().startswith("Truncation steps 3 to 8")
    assert "rollout.max_response_length" in finding.inner_text()
    finding.get_by_text("show the completions").click()
    page.get_by_text("2 prompts, 2 completions").wait_for()  # the page hears of its address later
    assert page.input_value("[name=step]") == "4-6"


def test_the_answers_of_a_group_and_the_spread_of_rewards(page, tmp_path):
    texts = [f"<answer>{a}</answer>" for a in (7, 7, 7, 8)] + ["no"]
    rows = [completion(text, n / 4) for n, text in enumerate(texts)]
    show(page, write(tmp_path, write_run(tmp_path / "run", {1: [prompt("a", rows)]})))
    assert page.inner_text("article .answers") == "3 answers: 7 ×3, 8, none"
    bins = page.locator(".spreads figure").first.locator("rect.bin title")
    assert [title.text_content() for title in bins.all()] == [
        f"step 1: 1 of 5 at {value}" for value in (0.025, 0.275, 0.525, 0.775, 0.975)
    ]


WORDS = ["angle", "side", "circle", "therefore", "equals", "triangle", "so", "we", "find"]


@pytest.mark.slow
def test_twenty_thousand_completions(page, tmp_path):
    """20,000 completions of about 1,500 characters on 1,250 different pictures."""
    chance = random.Random(0)
    generator = np.random.default_rng(0)

    def text() -> str:
        words = " ".join(chance.choice(WORDS) + str(chance.randrange(100)) for _ in range(180))
        return f"<think>{words}</think><answer>{chance.randrange(100)}</answer>"

    def picture(name: str) -> dict[str, Any]:
        entry = image(tmp_path / f"{name}.png")
        rough = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(rough).resize((320, 240), Image.Resampling.BICUBIC).save(entry["path"])
        return entry

    rollouts = {
        step: [
            prompt(
                f"{step}-{n}",
                [completion(text()) for _ in range(16)],
                media=[picture(f"{step}-{n}")],
            )
            for n in range(25)
        ]
        for step in range(1, 51)
    }
    folder = write_run(tmp_path / "big", rollouts)
    start = time.perf_counter()
    file = write(tmp_path, folder)
    print(f"written in {time.perf_counter() - start:.0f} s")
    size = file.stat().st_size
    assert size <= 45e6
    page.goto(file.as_uri(), wait_until="commit")
    page.wait_for_selector("body[data-ready]", timeout=60_000)
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print(f"{size / 1e6:.1f} MB, first paint after {painted:.0f} ms")
    assert painted <= 2000
    assert note(page) == "1250 prompts, 20000 completions"
    assert page.evaluate("document.documentElement.scrollHeight") < 25_000


def test_a_conversation_shows_its_turns_and_the_pictures_of_tools(page, tmp_path):
    part = image(tmp_path / "part.png", (56, 56))
    said = [("assistant", "<tool_call>zoom</tool_call>"), ("tool", HOSTILE), ("assistant", "7")]
    turns = [{"role": role, "text": text, "media": [], "calls": []} for role, text in said]
    turns[1]["media"] = [part]
    turns[1]["answers"] = [[{"text": HOSTILE}, {"medium": 0}, {"text": "that was it"}]]
    rows = [completion("<answer>7</answer>", turns=turns), completion("<answer>1</answer>")]
    run = write_run(tmp_path / "run", {1: [prompt("a", rows)]})
    page.goto(write(tmp_path, run).as_uri())
    shown = page.locator(".turn")
    shown.first.wait_for()
    assert shown.count() == 3
    assert [shown.nth(i).locator("b").inner_text().strip() for i in range(3)] == [
        "assistant", "tool", "assistant",
    ]  # fmt: skip
    order = shown.nth(1).evaluate("turn => [...turn.children].map(e => e.className || e.tagName)")
    assert order == ["B", "SPAN", "media", "SPAN"]
    picture = page.locator(".turn.tool img")
    picture.wait_for()
    assert picture.evaluate("image => image.naturalWidth") == 56
    assert "document.title='owned'" in shown.nth(1).inner_text()
    assert page.title() != "owned"
