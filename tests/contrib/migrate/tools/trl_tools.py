"""Tools as they are written for TRL's ``GRPOTrainer(tools=[...])``."""

import asyncio

from PIL import Image


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product of the two integers.
    """
    return a * b


async def slow_echo(message: str) -> str:
    """
    Says the message back.

    Args:
        message: What to say.

    Returns:
        The message.
    """
    await asyncio.sleep(0.01)
    return f"echo: {message}"


def patch(side: int) -> list:
    """
    Draws a red square.

    Args:
        side: In pixels.

    Returns:
        The picture and a caption.
    """
    return [
        {"type": "image", "image": Image.new("RGB", (side, side), "red")},
        {"type": "text", "text": f"{side} pixels"},
    ]


tools = [multiply, slow_echo, patch]
