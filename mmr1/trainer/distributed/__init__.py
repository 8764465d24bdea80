"""Many processes: FSDP2 ranks and rollout engines as Ray actors."""
