#!/usr/bin/env bash
# Builds the wheel and tries it as somebody who has no checkout: installed into an empty environment, used
# in another folder. The quickstart is run by transformers, in small.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
checkout=$PWD
work=${WORK:-$(mktemp -d)}
python3 -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install build twine
rm -rf dist
"$work/venv/bin/python" -m build --outdir dist . >"$work/build.log" 2>&1 || { tail -n 20 "$work/build.log" >&2; exit 1; }
"$work/venv/bin/python" -m twine check --strict dist/*
lock=$checkout/scripts/env/cpu.lock
torch=(--constraint "$lock" "torch==2.13.0")
if ! "${pip[@]}" install "${torch[@]}"; then # pip's index has no CPU build; uv knows PyTorch's own
    "${pip[@]}" install uv
    "$work/venv/bin/uv" pip install --quiet --python "$work/venv/bin/python" --torch-backend cpu "${torch[@]}"
fi
"${pip[@]}" install --constraint "$lock" "$(echo dist/*.whl)[data]"
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp scripts/env/mmr1_torchvision_cpu.py "$site/"
echo 'import mmr1_torchvision_cpu' >"$site/mmr1_torchvision_cpu.pth"

mkdir -p "$work/elsewhere"
cd "$work/elsewhere"
export PATH="$work/venv/bin:$PATH"
unset PYTHONPATH
mmr1 --version
mmr1 doctor
mmr1 recipe list
mmr1 recipe show r1_v_clevr >/dev/null
# The README's reward, which pays 4 and not 14.
sed -n '/^```python$/,/^```$/p' "$checkout/README.md" | sed '/^```/d' >my_reward.py
printf '{"completion": "<answer>%s</answer>", "answer": "4"}\n' 4 14 >replies.jsonl
mmr1 reward score --reward my_reward.py:reward --input replies.jsonl --output scored.jsonl
mmr1-data make digits --output data/digits
mmr1 recipe run quickstart trainer.max_steps=2 rollout.engine=hf
mmr1 report runs/quickstart/rl
mmr1 recipe run vlm_r1_rec --smoke

# The core needs no wing: the same without mmr1_contrib.
rm -r "$site/mmr1_contrib" runs/quickstart
mmr1 --help >/dev/null
mmr1 recipe run quickstart trainer.max_steps=2 rollout.engine=hf
mmr1 eval runs/quickstart/rl/config.yaml eval.data=data/digits/eval.jsonl eval.limit=4
mmr1 report runs/quickstart/rl
echo "the wheel works: $(basename "$checkout"/dist/*.whl)"
