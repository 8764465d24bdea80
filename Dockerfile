# An image with everything that mmr1 needs to run, without the tools of development. The stacks have
# the versions of scripts/env/*.lock. That of the CPU was built with buildah on Debian 12. That for GPUs was never built.
#
#   docker build -t mmr1 .                                             for NVIDIA GPUs
#   docker build -t mmr1-cpu --build-arg STACK=cpu --build-arg BASE=ubuntu:24.04 .
#   docker run --gpus all --shm-size 64g -v "$PWD/runs:/mmr1/runs" mmr1 mmr1 doctor
#
# Weights reach the rollout engine through /dev/shm: --shm-size is twice the model, or --ipc=host. The
# user in the image is 1000; --user takes another one, to whom the mounted folders must belong.
ARG BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04
FROM ${BASE}
ARG STACK=cuda

# A C compiler and Python's headers: Triton compiles its launchers when they are first used. vLLM's CPU
# kernels need libnuma. A distribution has one version of each.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential ca-certificates git libnuma1 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /mmr1
# The dependencies are a layer of their own, which a change of the source leaves as it is: for it an
# empty package stands in.
COPY pyproject.toml README.md LICENSE ./
COPY scripts/setup_env.sh scripts/
COPY scripts/env scripts/env
RUN mkdir -p mmr1 mmr1_contrib datasets_prep scripts/recipes \
    && touch mmr1/__init__.py mmr1_contrib/__init__.py datasets_prep/__init__.py \
    && MMR1_STACK=${STACK} MMR1_EXTRA=data,ray,serve PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 scripts/setup_env.sh
COPY . .
RUN .venv/bin/python -m compileall -q mmr1 mmr1_contrib datasets_prep \
    && (id -u 1000 >/dev/null 2>&1 || useradd --uid 1000 --create-home mmr1) \
    && mkdir -p runs && chown 1000 runs
ENV PATH=/mmr1/.venv/bin:$PATH
USER 1000

CMD ["mmr1", "--help"]
