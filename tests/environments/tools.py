"""Tools of a user's own, for the tests."""

import os
import socket
import time
import urllib.request
from pathlib import Path

from PIL import Image

from mmr1.environments.interpreter import python

LENGTHS = {"a": 3.5, "b": 12}


def lookup(name: str) -> str:
    """Look up the length of a side.

    Args:
        name: Of the side.
    """
    return f"{name} is {LENGTHS[name]} cm long"


def halves(image: Image.Image) -> list:
    """Show both halves of a picture.

    Args:
        image: The picture.
    """
    middle = image.width // 2
    left = image.crop((0, 0, middle, image.height))
    return ["left:", left, "right:", image.crop((middle, 0, image.width, image.height))]


def sleep(seconds: float) -> str:
    """Wait.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "awake"


def hear(pipe: str) -> str:
    """Wait for what comes through a named pipe.

    Args:
        pipe: Its path.
    """
    return Path(pipe).read_text()


def die(code: int = 3) -> str:
    """End the process.

    Args:
        code: Its exit code.
    """
    os._exit(code)


def connect(port: int) -> str:
    """Connect to this machine.

    Args:
        port: Where to.
    """
    socket.create_connection(("127.0.0.1", port), timeout=1)
    return "connected"


def write(path: str) -> str:
    """Write a file.

    Args:
        path: Which.
    """
    Path(path).write_text("x")
    return "written"


def chatter(length: int) -> str:
    """Say much.

    Args:
        length: In characters.
    """
    return "x" * length


def huge(width: int, height: int) -> Image.Image:
    """Show a large picture.

    Args:
        width: In pixels.
        height: In pixels.
    """
    return Image.new("RGB", (width, height))


def odd(kind: str) -> object:
    """Return what is not an answer.

    Args:
        kind: Of what.
    """
    return {"object": object(), "nothing": None, "number": 7, "list": [1, 2]}[kind]


def untyped(name):
    """Has no type hints.

    Args:
        name: Of anything.
    """


def undocumented(name: str) -> str:
    return name


def square_calls(text):
    """A parser: ``[name|argument=value]``."""
    import re

    found = re.findall(r"\[(\w+)\|(\w+)=([^\]]*)\]", text)
    return [{"name": name, "arguments": {key: value}} for name, key, value in found]


NOTES = []


def note(text: str) -> str:
    """Keep a note.

    Args:
        text: The note.
    """
    NOTES.append(text)
    return "kept"


def notes() -> str:
    """Show the notes."""
    return ", ".join(NOTES)


def noted_calls(text):
    """A parser that counts the turns it has read: every turn asks for the notes."""
    NOTES.append(f"turn {len(NOTES)}")
    return [{"name": "notes", "arguments": {}}]


several = [lookup, python]


def fetch(url: str) -> str:
    """Read a page.

    Args:
        url: Its address.
    """
    with urllib.request.urlopen(url, timeout=3) as page:
        return str(page.read().decode())


def dial() -> str:
    """Ask the kernel for a socket, past Python."""
    import ctypes

    return str(ctypes.CDLL(None).socket(2, 1, 0))
