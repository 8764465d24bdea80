"""What a run needs of GPUs: memory, a split into ranks and engines, and what is proposed."""
