"""Elements of a report page, and what is packed in them."""

from __future__ import annotations

import base64
import gzip
import json
import re


def element(html: str, name: str) -> str:
    (content,) = re.findall(rf'<script type="[^"]+" id="{name}">(.*?)</script>', html, re.S)
    return content


def unpacked(html: str, name: str) -> list[dict]:
    return json.loads(gzip.decompress(base64.b64decode(element(html, name))))
