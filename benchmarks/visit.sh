#!/usr/bin/env bash
# benchmarks/visit.sh OUT [PART ..]: what one or two GPUs show in about 25 minutes, with the PYTHON that has the stack.
# Parts: attention tests train (no part: these), demo, context (7B at 8k and 30k, every KV cache), decode_7b and decode_32b
# (8k, many sequences, int8 cache), refits (twenty syncs beside 8-bit caches), sync; on two GPUs also experts (a sync of
# 30B-A3B's), offloaded (the same with the trainer's weights on the host between its passes, as the recipe has it) and
# apart (one trains, one generates, over sockets). Each has its minutes (MINUTES_train=30: others); one that
# fails or runs out of them does not stop the rest. OUT gets a log and, where there is one, JSON and a picture of each; the
# table at the end says what to look at. Send OUT back whole. TRY=cpu: small shapes on a CPU, to see that it starts.
set -uo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly ROOT PARTS="attention tests train demo context decode_7b decode_32b refits sync experts offloaded apart"
declare -A MINUTES=([attention]=2 [tests]=5 [train]=18 [demo]=16 [context]=30 [decode_7b]=6 [decode_32b]=8 [refits]=10
  [sync]=15 [experts]=15 [offloaded]=18 [apart]=15)
# verl's 2,048 MB let an engine elsewhere begin late; one device trains a whole 7B with what follows
readonly APART=(--set verl.actor_rollout_ref.actor.use_kl_loss=false --
  actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=512
  +actor_rollout_ref.actor.optim.override_optimizer_config.foreach=false)
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
  gpu-decode_7b | gpu-decode_32b)
    shape=(--models "${1#decode_}" --context 8k --repeats 1 --trace --kv-cache int8)
    if [[ $1 == *32b ]]; then shape+=(--batch 24 --memory 0.82); else shape+=(--batch "160,64"); fi
    printf '%s\n' bench rollout "${shape[@]}" --out "$to.json"
    ;;
  gpu-refits) printf '%s\n' test gpu -- -k test_cache_refits ;;
  gpu-experts | gpu-offloaded)
    shape=(--recipe qwen3-30b-a3b-int8-grpo-h200 --layers 10 --arms "codes,plain" --answer 64 --prompt 64 --steps 4)
    shape+=(--set verl.actor_rollout_ref.actor.use_kl_loss=false)
    if [[ $1 == experts ]]; then shape+=(--set training.offload=false --set rollout.gpu_memory_utilization=0.4); fi
    printf '%s\n' bench sync --gpus 2 "${shape[@]}" --folder "$to" --out "$to.json" --picture "$to.png"
    ;;
  gpu-apart) printf '%s\n' bench apart --gpus 2 --steps 4 --folder "$to" --out "$to.json" "${APART[@]}" ;;
  gpu-sync)
    if ((there > 1)); then shape=(--gpus 2); else shape=(--gpus 1 --layers 14); fi
    shape+=(--arms "codes,plain" --answer 512 --prompt 256 --steps 5)
    printf '%s\n' bench sync "${shape[@]}" --folder "$to" --out "$to.json" --picture "$to.png"
    ;;
  cpu-attention) printf '%s\n' bench attention --device cpu --small --out "$to.json" ;;
  cpu-tests | cpu-refits) printf '%s\n' test gpu ;; # ends with 2: there is no GPU
  cpu-train)
    shape=(--device cpu --gpus 1 --answers 16 --prompt 12 --steps 2)
    printf '%s\n' bench train "${shape[@]}" --folder "$to" --out "$to.json" --picture "$to.png"
    ;;
  cpu-context | cpu-decode_*)
    shape=(--device cpu --models tiny --context "32,64" --batch 3 --repeats 1)
    printf '%s\n' bench rollout "${shape[@]}" --kv-cache auto,fp8 --out "$to.json"
    ;;
  cpu-sync)
    shape=(--device cpu --gpus 1 --arms codes --steps 3)
    printf '%s\n' bench sync "${shape[@]}" --folder "$to" --out "$to.json" --picture "$to.png"
    ;;
  cpu-experts | cpu-offloaded)
    shape=(--device cpu --gpus 1 --model tiny-moe --arms codes --steps 3)
    printf '%s\n' bench sync "${shape[@]}" --folder "$to" --out "$to.json" --picture "$to.png"
    ;;
  cpu-apart) # ends with 1: verl joins them by NCCL
    printf '%s\n' bench apart --device cpu --steps 3 --arms delta --folder "$to" --out "$to.json"
    ;;
  cpu-demo) printf '%s\n' demo --arms int8 --steps 2 --out "$to" ;;
  *) die "no part '$1': $PARTS" ;;
  esac
}

run_part() { # run_part PART: one line of the table
  local log=$OUT/$1.log begun=$SECONDS code=0 words minutes limit=MINUTES_$1
  local -a variables=()
  # on one host GPUs would reach each other's memory, as on two they cannot
  if [[ $1 == apart ]]; then variables=(NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1); fi
  minutes=${!limit:-${MINUTES[$1]}}
  mapfile -t words < <(command_of "$1")
  echo "visit.sh: $1, $minutes minutes at most: ./run.sh ${words[*]}"
  # INT, as from Ctrl-C: what the part has started ends with it
  env --default-signal=INT "${variables[@]}" timeout -s INT -k 60 "${minutes}m" "$ROOT/run.sh" "${words[@]}" >"$log" 2>&1 || code=$?
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
