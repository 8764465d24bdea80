"""SmolLM2 with eyes: its weights as the language half of an Idefics3, as SmolVLM-256M has them.

    python scripts/recipes/small_pretrained_vlm/model.py TEXT FOLDER [--layers 2] [--tower TRAINED]

The tower is small and random, or that of a trained model. With --layers the language half has the
first layers alone, through which a tower learns at a fraction of the cost.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessor,
    Idefics3Processor,
)

TOKENS = ("<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>")
SIDE, PATCH, SHUFFLE = 84, 14, 2
"""A picture of 84 x 84 pixels has 36 patches, which are joined to 9 tokens."""
TOWER = {
    "hidden_size": 192,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "image_size": SIDE,
    "patch_size": PATCH,
}
TEMPLATE = """\
{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}\
{% for part in message['content'] %}\
{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="SmolLM2, from small_pretrained/weights.py")
    parser.add_argument("folder", type=Path, help="where the model is written")
    parser.add_argument("--layers", type=int, help="of the language half; without it all")
    parser.add_argument("--tower", type=Path, help="a model whose tower is taken")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    processor = _processor(args.text)
    torch.manual_seed(args.seed)
    model = _model(args.text, processor.tokenizer, args.layers)
    if args.tower is not None:
        trained = Idefics3ForConditionalGeneration.from_pretrained(args.tower, dtype=torch.float32)
        model.model.vision_model.load_state_dict(trained.model.vision_model.state_dict())
        model.model.connector.load_state_dict(trained.model.connector.state_dict())
    model.save_pretrained(args.folder)
    processor.save_pretrained(args.folder)


def _processor(text: Path) -> Idefics3Processor:
    tokenizer = AutoTokenizer.from_pretrained(text)
    tokenizer.add_tokens([*TOKENS], special_tokens=True)
    tokenizer.chat_template = TEMPLATE
    edge = {"longest_edge": SIDE}
    images = Idefics3ImageProcessor(size=edge, max_image_size=edge, do_image_splitting=False)
    tokens = (SIDE // PATCH // SHUFFLE) ** 2
    return Idefics3Processor(images, tokenizer, image_seq_len=tokens, chat_template=TEMPLATE)


def _model(text: Path, tokenizer, layers: int | None) -> Idefics3ForConditionalGeneration:
    language = AutoModelForCausalLM.from_pretrained(text, dtype=torch.float32)
    language.resize_token_embeddings(len(tokenizer))
    if layers is not None:
        language.model.layers = language.model.layers[:layers]
        language.config.num_hidden_layers = layers
    config = Idefics3Config(
        text_config=language.config,
        vision_config=TOWER,
        scale_factor=SHUFFLE,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    model = Idefics3ForConditionalGeneration(config).float()
    model.model.text_model.load_state_dict(language.model.state_dict())
    model.tie_weights()
    model.generation_config = language.generation_config
    return model


if __name__ == "__main__":
    main()
