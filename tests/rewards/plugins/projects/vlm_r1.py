"""As VLM-R1's functions: a client at the top, the grid of the one picture, boxes as tagged text."""

import json
import re
import ssl

from PIL import Image

CLIENT = ssl.create_default_context()


def _box(text):
    found = re.search(r"\[\s*([\d.]+),\s*([\d.]+),\s*([\d.]+),\s*([\d.]+)\s*\]", text)
    return [float(number) for number in found.groups()] if found else None


def iou_reward(completions, solution, **kwargs):
    rewards = []
    for i, (completion, gold) in enumerate(zip(completions, solution, strict=True)):
        frames, rows, columns = kwargs["image_grid_thw"][i]
        width, height = Image.open(kwargs["image_path"][i][0]).size
        tagged = re.search(r"<answer>(.*?)</answer>", gold, re.DOTALL)
        wanted = json.loads(tagged.group(1))
        said = _box(re.sub(r".*<answer>", "", completion[0]["content"], flags=re.DOTALL))
        if said is None:
            rewards.append(0.0)
            continue
        scales = (width / (columns * 14), height / (rows * 14)) * 2
        said = [number * scale for number, scale in zip(said, scales, strict=True)]
        wide = max(0.0, min(said[2], wanted[2]) - max(said[0], wanted[0]))
        high = max(0.0, min(said[3], wanted[3]) - max(said[1], wanted[1]))
        area = sum((b[2] - b[0]) * (b[3] - b[1]) for b in (said, wanted))
        rewards.append(frames * wide * high / (area - wide * high))
    return rewards


def accuracy_reward(completions, solution, **kwargs):
    methods = {"default": 1.0, "mcq": 0.5}
    triples = zip(completions, solution, kwargs["accu_reward_method"], strict=True)
    return [
        methods[method] * (gold.split()[1] in completion[0]["content"])
        for completion, gold, method in triples
    ]


def rec_reward(completions, solution, **kwargs):
    return [
        float(_box(completion[0]["content"]) == gold)
        for completion, gold in zip(completions, solution, strict=True)
    ]
