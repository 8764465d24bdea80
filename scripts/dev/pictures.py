"""Make the pictures of the report in the documentation, from runs: none is drawn by hand.

    python scripts/dev/pictures.py RL HIGH_LR ZOOM LOOKS PRETRAINED

RL is the quickstart's ``runs/quickstart/rl``. HIGH_LR is the same run with ``optimizer.lr=3e-3``,
which collapses. ZOOM is ``runs/small_zoom/seed0/rl``, whose completions have tools' pictures. LOOKS
is the quickstart's with ``trainer.vision_use_steps=40``, PRETRAINED a run of
``small_pretrained_vlm``. ``-`` leaves a run and its picture out. Needs Playwright and a Chromium:
its own, or the one that the environment variable CHROMIUM names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from mmr1.report.page import write_report
from mmr1.report.run_reader import open_run

IMAGES = Path(__file__).parents[2] / "docs/images"
SCALE = 2
"""Pixels of a picture per pixel of the page, so that it is sharp on any screen."""


def main(rl: str, high_lr: str, zoom: str, looks: str, pretrained: str) -> None:
    with TemporaryDirectory() as folder, sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=os.environ.get("CHROMIUM"))

        def page(name: str, address: str = "") -> Any:
            file = Path(folder) / f"{Path(name).parts[-1]}.html"
            write_report([open_run(Path(name))], file, 12_000_000)
            window = {"width": 1280, "height": 860}
            shown = browser.new_page(viewport=window, device_scale_factor=SCALE)
            shown.goto(file.as_uri() + address)
            shown.wait_for_selector("body[data-ready]")
            shown.wait_for_timeout(500)  # pictures are put in as they are read
            return shown

        if rl != "-":
            shoot(page(rl), "report")
        if high_lr != "-":
            shoot(page(high_lr), "findings", height=640)
        if zoom != "-":
            last = page(zoom, "#rollouts?where=math%3D1+and+advantage%3E0&order=last")
            shoot(last, "conversation", "article")
        if looks != "-":
            shoot(page(looks, "#rollouts?order=spread&step=40"), "looks", "article", height=500)
        if pretrained != "-":
            address = "#rollouts?order=spread&step=16"
            shoot(page(pretrained, address), "looks_pretrained", "article", height=500)
        browser.close()


def shoot(page: Any, name: str, selector: str | None = None, height: int | None = None) -> None:
    """Take a picture of the window, or of the page from the first such element on."""
    if selector is not None:
        page.locator(selector).first.evaluate("element => element.scrollIntoView()")
    file = IMAGES / f"{name}.png"
    page.screenshot(path=file)
    if height is not None:
        image = Image.open(file)
        image.crop((0, 0, image.width, height * SCALE)).save(file)
    with Image.open(file) as image:
        image.convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(file, optimize=True)
    print(f"{file}: {file.stat().st_size / 1e3:.0f} kB")
    page.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
