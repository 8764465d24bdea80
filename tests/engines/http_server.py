"""A small inference server around a transformers model: ``python http_server.py MODEL``.

It prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor


class Server:
    """A model and its processor."""

    def __init__(self, path: str) -> None:
        self.model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
        self.processor = AutoProcessor.from_pretrained(path)

    def read(self, body: dict[str, Any]) -> dict[str, Any]:
        """The prompt as the model reads it."""
        images = [Image.open(io.BytesIO(base64.b64decode(image))) for image in body["images"]]
        made = self.processor.image_processor(images, return_tensors="pt") if images else {}
        grids = made["image_grid_thw"].tolist() if images else []
        merged = self.processor.image_processor.merge_size**2
        counts = iter([t * h * w // merged for t, h, w in grids])
        image, ids = self.model.config.image_token_id, []
        for token in body["ids"]:
            ids += [token] * (next(counts) if token == image else 1)
        tokens = torch.tensor([ids])
        return {"input_ids": tokens, "mm_token_type_ids": (tokens == image).int(), **made}

    def probe(self, body: dict[str, Any]) -> dict[str, Any]:
        inputs = self.read(body)
        grids = inputs["image_grid_thw"].tolist() if body["images"] else []
        return {"ids": inputs["input_ids"][0].tolist(), "grids": grids}

    @torch.no_grad()
    def generate(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        inputs, completions = self.read(body), []
        for seed in body["seeds"]:
            torch.manual_seed(seed)
            out = self.model.generate(
                **inputs,
                **({"temperature": body["temperature"]} if body["temperature"] else {}),
                do_sample=body["temperature"] > 0,
                **{"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0},
                max_new_tokens=body["max_tokens"],
                eos_token_id=body["stop_ids"],
                suppress_tokens=body["forbidden_ids"],
                pad_token_id=0,
                return_dict_in_generate=True,
                output_scores=True,
            )
            tokens = out.sequences[0, inputs["input_ids"].shape[1] :]
            scores = torch.cat(out.scores).log_softmax(-1)
            logprobs = scores.gather(-1, tokens[:, None])[:, 0]
            completions.append({"ids": tokens.tolist(), "logprobs": logprobs.tolist()})
        return completions

    def load(self, body: dict[str, Any]) -> dict[str, Any]:
        self.model.load_state_dict(load_file(body["file"]))
        return {}


def main() -> None:
    server = Server(sys.argv[1])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps(getattr(server, self.path.strip("/"))(body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    torch.set_num_threads(1)
    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(http.server_port, flush=True)
    http.serve_forever()


if __name__ == "__main__":
    main()
