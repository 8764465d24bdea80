"""Text-only decoders whose layers are those of Llama: Qwen2.5, Qwen3, Llama."""
