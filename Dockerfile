# An image with everything that mmr1 needs, installed by scripts/setup_env.sh from the versions that
# pyproject.toml pins. Neither stack has been built yet.
#
#   docker build -t mmr1 .                                             for NVIDIA GPUs
#   docker build -t mmr1-cpu --build-arg STACK=cpu --build-arg BASE=ubuntu:24.04 .
#   docker run --gpus all --shm-size 64g -v "$PWD/runs:/mmr1/runs" mmr1 mmr1 doctor
#
# Weights reach the rollout engine through /dev/shm: --shm-size is twice the model, or --ipc=host.
ARG BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04
FROM ${BASE}
ARG STACK=cuda

# A C compiler and Python's headers: Triton compiles its launchers when they are first used.
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential ca-certificates git python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /mmr1
COPY . .
RUN MMR1_STACK=${STACK} PIP_NO_CACHE_DIR=1 UV_COMPILE_BYTECODE=1 scripts/setup_env.sh
ENV PATH=/mmr1/.venv/bin:$PATH

CMD ["mmr1", "--help"]
