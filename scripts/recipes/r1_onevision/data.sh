#!/usr/bin/env bash
# R1-Onevision's way to its demonstrations: a picture is described in formal text, a model reasons over the text, and a
# judge decides what is kept.
#
#   SERVER=http://127.0.0.1:8000/v1 PROMPTS=my_prompts scripts/recipes/r1_onevision/data.sh RECORDS OUTPUT
#
# PROMPTS holds your own formal.jinja, with {{ question }}; reason.jinja, with {{ question }} and {{ meta.formal }}; and
# judge.jinja, with {{ question }}, {{ answer }} and {{ reply }}. FORMALIZER, REASONER and JUDGE are the models' names on
# the server, MODEL those that are not set. KEPT is the rule by which a verdict keeps a demonstration. Repeat an
# interrupted call.
set -euo pipefail
if [[ $# != 2 ]]; then echo "usage: $0 RECORDS OUTPUT" >&2; exit 2; fi
records="$1" out="$2" command="${MMR1_DATA:-mmr1-data}"

# asked MODEL PROMPT FROM TO [option ...]: one step, unless it is done.
asked() {
    if [[ -e "$out/$4.jsonl" ]]; then return; fi
    "$command" ask "$3" --output "$out/$4.jsonl" --server "$SERVER" --model "$1" --prompt "$PROMPTS/$2.jinja" \
        --max-tokens "${TOKENS:-4096}" "${@:5}"
}

asked "${FORMALIZER:-$MODEL}" formal "$records" formal --into formal --temperature 0
asked "${REASONER:-$MODEL}" reason "$out/formal.jsonl" reasoned --text-only
asked "${JUDGE:-$MODEL}" judge "$out/reasoned.jsonl" judged --into verdict --temperature 0
"$command" filter "$out/judged.jsonl" --output "$out/demonstrations.jsonl" \
    --rule "${KEPT:-meta.verdict.strip().lower().startswith('yes')}"
