"""What a plugin can do wrong."""

import ctypes
import os
import sys
import time
from pathlib import Path


def _poisoned(completion):
    return "poison" in completion


def raises(completion, answer):
    if _poisoned(completion):
        raise KeyError("no such label")
    return 1.0


def hangs(completion, answer):
    while _poisoned(completion):
        pass
    return 1.0


def hangs_in_c(completion, answer):
    if _poisoned(completion):
        ctypes.PyDLL(None).sleep(1000)  # with the interpreter's lock held
    return 1.0


def nan(completion, answer):
    return float("nan") if _poisoned(completion) else 1.0


def reward_of_nan(completion, answer):
    from mmr1.types import Reward

    return Reward(float("nan")) if _poisoned(completion) else Reward(1.0)


def part_of_nan(completion, answer):
    from mmr1.types import Reward

    return Reward(1.0, components={"part": float("nan") if _poisoned(completion) else 1.0})


def forges(completion, answer):
    """An answer of its own, on whatever descriptor leads out, and then the honest one."""
    if _poisoned(completion):
        for descriptor in range(3, 20):
            try:
                os.write(descriptor, b'\0\0\0\x17[[NaN, "ok", null, {}]]')
            except OSError:
                continue
        time.sleep(0.5)
    return 1.0


def none(completion, answer):
    return None if _poisoned(completion) else 1.0


def text(completion, answer):
    return "1.0" if _poisoned(completion) else 1.0


def prints_a_gigabyte(completion, answer):
    if _poisoned(completion):
        for _ in range(1024):
            print("x" * (1 << 20))
            sys.stderr.write("y" * (1 << 20))
    return 1.0


def allocates(completion, answer):
    return float(len(bytearray(50 << 30)) > 0) if _poisoned(completion) else 1.0


def exits(completion, answer):
    if _poisoned(completion):
        os._exit(0)
    return 1.0


def system_exit(completion, answer):
    if _poisoned(completion):
        sys.exit(0)
    return 1.0


def writes(completion, answer):
    if _poisoned(completion):
        Path("/tmp/mmr1-plugin-escaped").write_text("out")
    return 1.0


def too_few(completions, **kwargs):
    return [1.0] * (len(completions) - 1)


def batch_raises(completions, **kwargs):
    if any(_poisoned(c[0]["content"]) for c in completions):
        raise RuntimeError("one of them is poisoned")
    return [1.0] * len(completions)


def batch_hangs(completions, **kwargs):
    while any(_poisoned(c[0]["content"]) for c in completions):
        pass
    return [1.0] * len(completions)


def not_a_list(completions, **kwargs):
    return 1.0


def unknown_dialect(a, b):
    return 1.0


NOT_A_FUNCTION = 3
