#!/usr/bin/env bash
# The one entry. ./run.sh help
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
VENV=$(realpath -m "${VENV:-$ROOT/.venv}")
LOCK=$(realpath -m "${ASCEND_QUANT_LOCK:-$ROOT/docker/locks/cpu.txt}")
readonly ROOT VENV LOCK

declare -rA FOLDER=([unit]=unit [engine]=engine [npu]=npu_host [cluster]=cluster [images]=images)
readonly GROUPS_IN_ORDER=(unit engine npu cluster images)
readonly COMMANDS=(demo train stop doctor data recipe test bench lint setup help)

usage() {
  cat <<'EOF'
usage: ./run.sh COMMAND [ARGUMENTS]

  demo [..]                     RL on a laptop with an engine re-quantized in place every step (demo --help: options)
  test [GROUP ..] [-- ARGS ..]  run tests; groups: unit engine npu cluster images all (no group: all); ARGS go to pytest
                                (npu: the real torch_npu on host memory, in environments of its own)
  test npu-smoke [-- ARGS ..]   on an Atlas A2 or A3: what it gives, into one JSON file to send back (-- --help: options)
  recipe list | show NAME [..]  what can be trained, and the verl command that it becomes (recipe show --help: options)
  train RECIPE [..] [-- ..]     train it on this machine, or with --cluster INVENTORY on its hosts; --dry-run shows the
                                plan; what follows -- goes to verl (train --help: options)
  stop [RUN]                    end what a run started, on every host, and nothing else
  doctor [..]                   look for what would stop a run, here or with --cluster on its hosts, with fixes
  data NAME [..]                prepare gsm8k, dapo-math-17k or addition, from the hub or --from FOLDER, in --to FOLDER
  bench refit [..]              what a refit costs beside the alternatives, on this CPU (bench refit --help: options)
  bench convert FOLDER [..]     how fast checkpoints are converted beside a copy, on the disk of FOLDER
  lint                          the checks that CI runs: format, lint, shell scripts, YAML
  setup                         make the environment only
  help                          this text

planned, not in this version: images

Every command but help and test npu-smoke first makes the environment from the lock: Python 3.11 and gcc are needed,
nothing else. It is made once, and again when the lock changes.

  VENV=DIR                where it is made (default: .venv beside run.sh)
  ASCEND_QUANT_LOCK=FILE  another lock (default: docker/locks/cpu.txt); give it a VENV of its own
  PYTHON=FILE             for test npu-smoke, the Python that has your torch_npu (default: python3); for train, stop,
                          doctor and data, an interpreter that has the stack, to be used as it is: in an image, or on a
                          host with NPUs or GPUs (default: the environment from the lock)
EOF
}

die() {
  printf 'run.sh: %s\n' "$@" >&2
  exit 2
}

set_up() {
  "$ROOT/docker/locks/install.sh" "$VENV" "$LOCK"
  export VENV PATH="$VENV/bin:$PATH"
}

set_up_npu() { # the NPU tests' own environments, newer and older: torch_npu would be loaded by every import of torch
  "$ROOT/docker/locks/install.sh" "$VENV-npu" "$ROOT/docker/locks/npu-host.txt"
  "$ROOT/docker/locks/install.sh" "$VENV-npu-2.7" "$ROOT/docker/locks/npu-2.7.txt"
  export NPU27_PYTHON="$VENV-npu-2.7/bin/python"
}

offline() { # nothing here may fetch a model or phone home, unless the caller says so
  export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
  export TRANSFORMERS_OFFLINE=${TRANSFORMERS_OFFLINE:-1}
  export DO_NOT_TRACK=${DO_NOT_TRACK:-1}
  export VLLM_NO_USAGE_STATS=${VLLM_NO_USAGE_STATS:-1}
  export RAY_USAGE_STATS_ENABLED=${RAY_USAGE_STATS_ENABLED:-0}
  export WANDB_MODE=${WANDB_MODE:-offline}
  export TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-false}
}

has_tests() { [[ -d $1 && -n $(find "$1" -name 'test_*.py' -print -quit) ]]; }

run_pytest() { # run_pytest VENV FOLDERS.. ARGS..: one run, so that its last line counts every test
  local code=0 venv=$1
  shift
  cd "$ROOT"
  "$venv/bin/python" -m pytest "$@" || code=$?
  if ((code == 5)); then echo "run.sh: no test was run: does a filter leave any?" >&2; fi
  return "$code"
}

run_npu_smoke() { # in the user's own environment: their CANN, torch and torch_npu are what is tried
  local python=${PYTHON:-python3}
  if (($#)) && [[ $1 != -- ]]; then die "npu-smoke runs alone, not with '$1'. Its arguments come after --"; fi
  if (($#)); then shift; fi
  command -v "$python" >/dev/null || die "no '$python': set PYTHON to the Python that has your torch_npu"
  export PYTHONPATH="$ROOT:$ROOT/tests${PYTHONPATH:+:$PYTHONPATH}"
  exec "$python" -m npu_smoke "$@"
}

run_tests() {
  if [[ ${1:-} == npu-smoke ]]; then run_npu_smoke "${@:2}"; fi
  local group npu=0 folders=()
  local -A chosen=()
  while (($#)) && [[ $1 != -- ]]; do
    if [[ $1 == all ]]; then
      for group in "${GROUPS_IN_ORDER[@]}"; do chosen[$group]=1; done
    elif [[ -n ${FOLDER[$1]:-} ]]; then
      chosen[$1]=1
    else
      die "no test group '$1'. Groups: ${GROUPS_IN_ORDER[*]} all, and npu-smoke alone. Arguments come after --"
    fi
    shift
  done
  if (($#)); then shift; fi # the --
  for group in "${GROUPS_IN_ORDER[@]}"; do
    if ((${#chosen[@]})) && [[ -z ${chosen[$group]:-} ]]; then continue; fi
    if ! has_tests "$ROOT/tests/${FOLDER[$group]}"; then
      echo "run.sh: test group $group: planned, not in this version; skipped" >&2
    elif [[ $group == npu ]]; then
      npu=1
    else
      folders+=("tests/${FOLDER[$group]}")
    fi
  done
  ((${#folders[@]} + npu)) || die "none of these groups has tests in this version"
  offline
  if ((npu)); then
    set_up_npu
    if ((!$#)); then export NPU_OPS=${NPU_OPS:-compare}; fi # docs/npu_ops.md with what a whole run calls
    run_pytest "$VENV-npu" tests/npu_host "$@"
    run_pytest "$VENV-npu-2.7" tests/npu_host_0_10 "$@"
  fi
  if ((${#folders[@]})); then
    set_up
    run_pytest "$VENV" "${folders[@]}" "$@"
  fi
}

run_demo() {
  set_up
  offline
  exec "$VENV/bin/python" -m launch demo "$@"
}

run_recipe() {
  set_up
  exec "$VENV/bin/python" -m launch recipe "$@"
}

run_launch() { # run_launch train|stop|doctor|data ARGS..: in the environment from the lock, or in the stack's own
  local python=${PYTHON:-}
  if [[ -z $python ]]; then
    set_up >&2 # stdout is for --json
    python=$VENV/bin/python
  fi
  command -v "$python" >/dev/null || die "no '$python': set PYTHON to the interpreter that has the stack"
  export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
  exec "$python" -m launch "$@"
}

run_bench() {
  local what=${1:-}
  case $what in
  refit) set -- --device cpu "${@:2}" ;;
  convert) shift ;;
  *) die "bench: say which: refit convert (./run.sh bench refit --help: options)" ;;
  esac
  set_up
  offline
  export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" # benchmarks/ is not part of the installed package
  exec "$VENV/bin/python" -m "benchmarks.$what" "$@"
}

run_lint() {
  set_up
  cd "$ROOT"
  exec pre-commit run --all-files --show-diff-on-failure
}

main() {
  local command=${1:-help}
  if (($#)); then shift; fi
  case $command in
  demo) run_demo "$@" ;;
  test) run_tests "$@" ;;
  bench) run_bench "$@" ;;
  recipe) run_recipe "$@" ;;
  train | stop | doctor | data) run_launch "$command" "$@" ;;
  lint) run_lint ;;
  setup) set_up ;;
  help | -h | --help) usage ;;
  images) die "$command: planned: not in this version" ;;
  *)
    die "no command '$command'. Commands: ${COMMANDS[*]} (planned: images)"
    ;;
  esac
}

main "$@"
