"""The built-in tools. The policy reads their docstrings."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageDraw

from mmr1.environments.pictures import Picture, Video
from mmr1.registry import Registry

TOOLS = Registry(
    "tool",
    {
        name: f"mmr1.environments.toolbox:{name}"
        for name in ("zoom", "rotate", "mark", "frame", "clip", "calculate")
    }
    | {"python": "mmr1.environments.interpreter:python"},
    group="mmr1.tools",
)

_MAX_FRAMES = 8


def zoom(image: Picture, box: list[float]) -> Image.Image:
    """Show a part of a picture at its full resolution.

    Args:
        image: The picture.
        box: Left, top, right and bottom of the part.
    """
    left, top, right, bottom = image.box(box)
    return image.image.crop(
        (math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom))
    )


def rotate(image: Picture, degrees: float) -> Image.Image:
    """Turn a picture clockwise.

    Args:
        image: The picture.
        degrees: How far, in degrees.
    """
    if not math.isfinite(degrees):
        raise ValueError(f"{degrees} is not an angle")
    return image.image.rotate(-degrees, expand=True, resample=Image.Resampling.BICUBIC)


def mark(image: Picture, boxes: list[list[float]]) -> Image.Image:
    """Draw numbered boxes into a picture.

    Args:
        image: The picture.
        boxes: Left, top, right and bottom of each box.
    """
    marked = image.image.copy()
    draw = ImageDraw.Draw(marked)
    width = max(1, max(marked.size) // 200)
    for number, numbers in enumerate(boxes, start=1):
        left, top, right, bottom = image.box(numbers)
        draw.rectangle((left, top, right, bottom), outline="red", width=width)
        draw.text((left + width + 1, top + width), str(number), fill="red")
    return marked


def frame(video: Video, seconds: float) -> Image.Image:
    """Show one frame of a video.

    Args:
        video: The video.
        seconds: Its time, from the beginning.
    """
    return video.frames([seconds])[0]


def clip(video: Video, start: float, end: float, frames: int = 4) -> list[Image.Image]:
    """Show frames of a part of a video, at equal distances.

    Args:
        video: The video.
        start: Where the part begins, in seconds.
        end: Where it ends, in seconds.
        frames: How many frames.
    """
    if not 0 <= start < end:
        raise ValueError(f"a part from {start} s to {end} s")
    if not 1 <= frames <= _MAX_FRAMES:
        raise ValueError(f"{frames} frames; from 1 to {_MAX_FRAMES} are shown")
    step = (end - start) / frames
    return video.frames([start + (i + 0.5) * step for i in range(frames)])


def calculate(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: Numbers, + - * / // % **, parentheses, pi, e, and functions such as sqrt(2).
    """
    value = _value(ast.parse(expression.strip(), mode="eval").body)
    return str(value) if isinstance(value, int) else f"{value:.15g}"


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_FUNCTIONS = {
    name: getattr(math, name)
    for name in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan")
} | {"abs": abs, "round": round, "min": min, "max": max}
_CONSTANTS = {"pi": math.pi, "e": math.e}
_MAX_BITS = 4096


def _value(node: ast.expr) -> Any:
    """The number that an expression stands for. Raises ValueError for anything else."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            a, b = _value(left), _value(right)
            whole = isinstance(a, int) and isinstance(b, int)
            if whole and isinstance(op, ast.Pow) and a.bit_length() * abs(b) > _MAX_BITS:
                raise ValueError("the power is too large")
            return _bounded(_OPERATORS[type(op)](a, b))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_value, arguments)))
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")


def _bounded(number: Any) -> Any:
    if isinstance(number, int):
        usual = number.bit_length() <= _MAX_BITS
    else:
        usual = isinstance(number, float) and math.isfinite(number)
    if not usual:
        raise ValueError("the result is not a number of a usual size")
    return number
