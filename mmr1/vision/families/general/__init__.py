"""Any vision-language model that transformers knows, by its own processor and forward."""
