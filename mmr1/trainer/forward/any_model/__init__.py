"""The packed forward of any transformers model, by the model's own code; a probe admits it."""
