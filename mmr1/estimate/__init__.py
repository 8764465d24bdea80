"""GPU needs of a run: memory, a split into ranks and engines, and a proposal."""
