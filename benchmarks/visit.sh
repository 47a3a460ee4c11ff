#!/usr/bin/env bash
# benchmarks/visit.sh OUT [PART ..]: what one or two GPUs show in about 25 minutes, with the PYTHON that has the stack.
# Parts: attention tests train demo context sync (no part: the first three). Each has its minutes (MINUTES_train=30:
# others); one that fails or runs out of them does not stop the rest. OUT gets a log and, where there is one, JSON and a
# picture of each; the table at the end says what to look at. Send OUT back whole. TRY=cpu: small shapes on a CPU, to see
# that it starts.
set -uo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly ROOT PARTS="attention tests train demo context sync"
declare -A MINUTES=([attention]=2 [tests]=5 [train]=18 [demo]=16 [context]=30 [sync]=15)
declare -a TABLE=()

die() {
  echo "visit.sh: $*" >&2
  exit 2
}

gpus() { if command -v nvidia-smi >/dev/null; then nvidia-smi -L | grep -c '^GPU'; else echo 0; fi; }

command_of() { # command_of PART: its words, one a line
  local to=$OUT/$1 there shape
  there=$(gpus)
  case ${TRY:-gpu}-$1 in
  gpu-attention) printf '%s\n' bench attention --out "$to.json" ;;
  gpu-tests) printf '%s\n' test gpu -- -k "not test_recipes and not test_demo" ;;
  gpu-train)
    if ((there > 1)); then shape=(--gpus 2 --answers 4096); else shape=(--gpus 1 --layers 14 --answers 4096); fi
    printf '%s\n' bench train "${shape[@]}" --steps 4 --folder "$to" --out "$to.json" --picture "$to.png"
    ;;
  gpu-demo) printf '%s\n' demo --device cuda --out "$to" ;;
  gpu-context)
    shape=(--models 7b --context "8k,30k" --batch "32,64" --repeats 1 --trace)
    printf '%s\n' bench rollout "${shape[@]}" --kv-cache auto,int8,fp8,int8-vllm,fp8-vllm --out "$to.json"
    ;;
  gpu-sync)
    if ((there > 1)); then shape=(--gpus 2); else shape=(--gpus 1 --layers 14); fi
    shape+=(--arms "codes,plain" --answer 2048 --prompt 256 --steps 3)
    printf '%s\n' bench sync "${shape[@]}" --folder "$to" --out "$to.json" --picture "$to.png"
    ;;
  cpu-attention) printf '%s\n' bench attention --device cpu --small --out "$to.json" ;;
  cpu-tests) printf '%s\n' test gpu ;; # ends with 2: there is no GPU
  cpu-train)
    shape=(--device cpu --gpus 1 --answers 16 --prompt 12 --steps 2)
    printf '%s\n' bench train "${shape[@]}" --folder "$to" --out "$to.json" --picture "$to.png"
    ;;
  cpu-context)
    shape=(--device cpu --models tiny --context "32,64" --batch 3 --repeats 1)
    printf '%s\n' bench rollout "${shape[@]}" --kv-cache auto,fp8 --out "$to.json"
    ;;
  cpu-sync)
    shape=(--device cpu --gpus 1 --arms codes --steps 3)
    printf '%s\n' bench sync "${shape[@]}" --folder "$to" --out "$to.json" --picture "$to.png"
    ;;
  cpu-demo) printf '%s\n' demo --arms int8 --steps 2 --out "$to" ;;
  *) die "no part '$1': $PARTS" ;;
  esac
}

run_part() { # run_part PART: one line of the table
  local log=$OUT/$1.log begun=$SECONDS code=0 words minutes limit=MINUTES_$1
  minutes=${!limit:-${MINUTES[$1]}}
  mapfile -t words < <(command_of "$1")
  echo "visit.sh: $1, $minutes minutes at most: ./run.sh ${words[*]}"
  # INT, as from Ctrl-C: what the part has started ends with it
  env --default-signal=INT timeout -s INT -k 60 "${minutes}m" "$ROOT/run.sh" "${words[@]}" >"$log" 2>&1 || code=$?
  if ((code == 124)); then code="out of time"; fi
  TABLE+=("$(printf '%-10s %-12s %5d s  %s' "$1" "$code" "$((SECONDS - begun))" "$(grep -v '^\s*$' "$log" | tail -n 1)")")
}

main() {
  (($#)) || die "say where to write: benchmarks/visit.sh OUT [PART ..]"
  [[ -n ${PYTHON:-} ]] || die "set PYTHON to the interpreter that has the stack"
  OUT=$(realpath -m "$1")
  shift
  local part
  local -a parts=("$@")
  if ((!$#)); then parts=(attention tests train); fi
  for part in "${parts[@]}"; do [[ -n ${MINUTES[$part]:-} ]] || die "no part '$part': $PARTS"; done
  mkdir -p "$OUT"
  nvidia-smi >"$OUT/nvidia-smi.txt" 2>&1
  for part in "${parts[@]}"; do run_part "$part"; done
  printf '%s\n' "part       ended        taken  last line" "${TABLE[@]}" | tee "$OUT/table.txt"
}

main "$@"
