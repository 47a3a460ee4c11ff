#!/usr/bin/env bash
# The one entry. ./run.sh help
set -euo pipefail
unset PYTHONHOME # of another interpreter than those that are started here

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
VENV=$(realpath -m "${VENV:-$ROOT/.venv}")
LOCK=$(realpath -m "${ASCEND_QUANT_LOCK:-$ROOT/docker/locks/cpu.txt}")
HELP=$ROOT/docs/cli.md # the commands' own help, written there by tools.pages; images have it not, but an environment
readonly ROOT VENV LOCK HELP

# Every group that needs no accelerator, in order; .github/workflows/nightly.yml reads it here (test --list).
readonly TEST_GROUPS=(unit engine images npu cluster)
# What the NPU environments of other versions than 0.23 are for: a short check makes them when one of these has changed.
readonly NPU_VERSIONS=(ascend_quant/integrations/vllm_ascend ascend_quant/kernels/npu* tests/npu_host tests/npu_host_0_10 docker/locks/npu*)
readonly OWN_PATH=$PATH # npu's tests are not to see set_up's
readonly TWO_AT_ONCE=(-n auto --dist loadfile --no-loadscope-reorder) # a file stays together: its tests share engines
readonly COMMANDS=(demo smoke train stop doctor data recipe test bench lint setup help)

usage() {
  cat <<EOF
usage: ./run.sh COMMAND [ARGUMENTS]

  smoke [..]                    test this machine: operators, three training steps and a refitted engine; writes one JSON
  demo [..]                     RL on a laptop, with an engine that is re-quantized in place at every step (options:
                                demo --help)
  test [-- ARGS ..]             check a change, in some 40 minutes on two cores: all groups without their long tests,
                                except for those whose subject has changed since the last merge base in git; ARGS are
                                passed to pytest
  test GROUP .. [-- ARGS ..]    run full groups: ${TEST_GROUPS[*]}; all: everything, as before a release
                                (npu runs the real torch_npu on host memory, in separate environments. images and npu
                                run in parallel with cluster, unit and engine in two processes; ARGS -n 0: in one)
  test --list                   print these groups as a JSON list: the jobs of the nightly run
  test gpu [-- ARGS ..]         run the tests that need NVIDIA GPUs, with a PYTHON that has stack cuda13 (docs/nvidia.md)
  recipe list | show NAME [..]  list the recipes, or print the verl command of one (options: recipe show --help)
  train RECIPE [..] [-- ..]     train a recipe on this machine, or with --cluster INVENTORY on its hosts; --dry-run shows
                                the plan; arguments after -- are passed to verl (options: train --help)
  stop [RUN]                    stop a run on all its hosts, and nothing else
  doctor [..]                   report problems that would stop a run, with fixes; with --cluster, on all its hosts
  data NAME [..]                prepare gsm8k, dapo-math-17k or addition, from the hub or --from FOLDER, in --to FOLDER
  bench refit [..]              time refits and their alternatives, on this CPU (options: bench refit --help)
  bench rollout [..]            compare the generation speed of schemes (on a GPU; to try it: --device cpu --models tiny)
  bench train [..]              time the stages of a recipe's steps with INT8 and with BF16 (to try it: --device cpu)
  bench sync [..]               time weight syncs with verl in each sending mode, and verl's own (two GPUs)
  bench convert FOLDER [..]     time the conversion of checkpoints against a copy, on the disk of FOLDER
  bench study [..]              compare what policies learn with INT8 and with BF16 rollouts, in many real trainings
  lint                          run the checks of CI: format, lint, imports, shell scripts, YAML
  lint --contract RELEASE       check that vllm==0.34.0 (or verl, vllm-ascend) still has all names that we use, without
                                installing it
  setup                         only create the environment, at VENV and from the lock ASCEND_QUANT_LOCK
  help, --version               print this text, or the version of this checkout

COMMAND --help prints a command's options. Every command except help, --version and test gpu first creates the
environment from the lock, which needs only Python 3.11, gcc and libnuma. It is created once, and again if the lock
changes.

  VENV=DIR                folder of the environment of this checkout (default: .venv beside run.sh)
  ASCEND_QUANT_LOCK=FILE  another lock (default: docker/locks/cpu.txt); use a separate VENV for it
  PYTHON=FILE             an interpreter that has the stack, used without changes: in an image, or on a host with NPUs or
                          GPUs (default: the environment from the lock)
EOF
}

usage_of() { # usage_of COMMAND: what the usage says of it
  printf 'usage: ./run.sh COMMAND [ARGUMENTS]     (./run.sh help: all commands, and the variables that they read)\n\n'
  usage | awk -v wanted="$1" '/^ ? ?[^ ]/ || !NF { on = /^  / && $1 == wanted } on'
}

die() {
  printf 'run.sh: %s\n' "$@" >&2
  exit 2
}

set_up() {
  "$ROOT/docker/locks/install.sh" "$VENV" "$LOCK"
  export VENV PATH="$VENV/bin:$PATH"
}

set_up_npu() { # set_up_npu LOCK..: the NPU tests' own environments: torch_npu would be loaded by every import of torch
  local lock pairs=()
  for lock in "$@"; do pairs+=("$VENV-${lock/npu-host/npu}" "$ROOT/docker/locks/$lock.txt"); done
  # xargs makes two at once and in the foreground, where Ctrl-C ends them
  printf '%s\0' "${pairs[@]}" | xargs -0 -n 2 -P 2 "$ROOT/docker/locks/install.sh"
}

last_merge_base() { # the commit that this change stands on: where it left the main branch, else the one before it
  local base head
  head=$(git -C "$ROOT" rev-parse --quiet --verify HEAD 2>/dev/null) || return 0 # no checkout: nothing is known
  base=$(git -C "$ROOT" merge-base HEAD origin/main 2>/dev/null) || base=$head
  if [[ $base == "$head" ]]; then base=$(git -C "$ROOT" rev-parse --quiet --verify HEAD~1) || base=''; fi
  echo "$base"
}

# In a short check SHORT_SINCE is set: the last merge base, or nothing where git knows none (tests/conftest.py reads it).
has_changed() { # has_changed PATH..: since then; true outside a short check, which leaves nothing out
  [[ -z ${SHORT_SINCE+set} ]] || { [[ -n $SHORT_SINCE ]] && ! git -C "$ROOT" diff --quiet "$SHORT_SINCE" -- "$@"; }
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

folder_of() { # folder_of GROUP: its folder below tests/
  case $1 in
  npu) echo npu_host ;; # and npu_host_0_10, of the older environment
  *) echo "$1" ;;
  esac
}

list_groups() {
  local listed
  printf -v listed '"%s", ' "${TEST_GROUPS[@]}"
  echo "[${listed%, }]"
}

has_tests() { [[ -d $1 && -n $(find "$1" -name 'test_*.py' -print -quit) ]]; }

run_pytest() { # [OF=VERSION] run_pytest PYTHON FOLDER ARGS..: one run; after a failed one the next still runs
  local code=0 what=tests/$2${OF:+ of $OF}
  cd "$ROOT"
  "$1" -m pytest "tests/$2" "${@:3}" || code=$?
  case $code in
  0) RESULTS+=("$what: passed") ;;
  5) RESULTS+=("$what: no test was run: does a filter leave any?") ;;
  *) RESULTS+=("$what: FAILED, pytest ended with $code") ;;
  esac
  CODES+=("$code")
}

run_group() { # run_group GROUP ARGS..
  local folder
  folder=$(folder_of "$1")
  case $1 in
  npu)
    local versions=()
    if has_changed "${NPU_VERSIONS[@]}"; then versions=(npu-0.30 npu-2.7); fi
    set_up_npu npu-host "${versions[@]}"
    if ((${#versions[@]})); then export NPU27_PYTHON="$VENV-npu-2.7/bin/python"; fi
    if [[ $# == 1 && -z ${SHORT_SINCE+set} ]]; then export NPU_OPS=${NPU_OPS:-compare}; fi # docs/npu_ops.md with what a whole run calls
    run_pytest "$VENV-npu/bin/python" "$folder" "${@:2}"
    ((${#versions[@]})) || return 0
    OF="vllm-ascend 0.30" NPU_OPS='' run_pytest "$VENV-npu-0.30/bin/python" "$folder" -m each_version "${@:2}"
    run_pytest "$VENV-npu-2.7/bin/python" "${folder}_0_10" "${@:2}"
    ;;
  unit | engine)
    set_up
    run_pytest "$VENV/bin/python" "$folder" "${TWO_AT_ONCE[@]}" "${@:2}"
    ;;
  *) # alone: they wait for what must happen in time, and work on the machine as root
    set_up
    run_pytest "$VENV/bin/python" "$folder" "${@:2}"
    ;;
  esac
}

start_beside() { # start_beside GROUPS -- ARGS..: beside cluster, whose hosts mostly wait; what they say is kept for later
  BESIDE_SAID=$(mktemp)
  PATH=$OWN_PATH setsid "$ROOT/run.sh" test "$@" >"$BESIDE_SAID" 2>&1 &
  BESIDE=$!
  trap 'kill -TERM -- "-$BESIDE"; rm -f "$BESIDE_SAID"' EXIT # a session of its own: Ctrl-C does not reach it
}

finish_beside() { # finish_beside GROUPS..
  local code=0
  wait "$BESIDE" || code=$?
  trap - EXIT
  cat "$BESIDE_SAID"
  rm -f "$BESIDE_SAID"
  RESULTS+=("tests of $*, above: ended with $code")
  CODES+=("$code")
}

show_results() { # show_results ARGS..: a line for each run; returns the worst exit code
  local code worst=0 tried=0
  for code in "${CODES[@]}"; do
    if ((code == 5 && $#)); then continue; fi # with ARGS: a filter may leave no test in some of the runs
    tried=1
    if ((code > worst)); then worst=$code; fi
  done
  printf 'run.sh: %s\n' "${RESULTS[@]}" >&2
  if ((!tried)); then worst=5; fi
  return "$worst"
}

run_gpu() { # in the user's own environment: their GPUs, torch and vLLM are what is tried
  local python=${PYTHON:-} lacking
  if (($#)) && [[ $1 != -- ]]; then die "gpu runs alone, not with '$1'. Its arguments come after --"; fi
  if (($#)); then shift; fi
  [[ -n $python ]] || die "test gpu: set PYTHON to the interpreter that has the stack cuda13"
  python=$(command -v "$python") || die "no '$PYTHON': set PYTHON to the interpreter that has the stack cuda13"
  has_tests "$ROOT/tests/gpu" || die "test gpu: no tests here: mount a checkout and start that, as
  docker run --gpus all --ipc host -v CHECKOUT:/src IMAGE /src/run.sh test gpu"
  "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    die "test gpu: no GPU: torch.cuda.is_available() is not true in $python"
  lacking=$("$python" -c 'from importlib.util import find_spec
print(*(name for name in ("pytest", "pytest_timeout", "hypothesis") if find_spec(name) is None))')
  [[ -z $lacking ]] || die "test gpu: not in $python: $lacking. Run: $python -m pip install ${lacking//_/-}
  (in an image: docs/nvidia.md)"
  offline
  trap 'exit 130' INT
  export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" # before what is installed: an image has the package too
  RESULTS=() CODES=()
  run_pytest "$python" gpu -m gpu "$@"
  run_pytest "$python" unit -m gpu "$@"
  show_results "$@"
}

run_tests() {
  case ${1:-} in
  gpu)
    run_gpu "${@:2}"
    return
    ;;
  --list)
    (($# == 1)) || die "test --list stands alone, not with '$2'"
    list_groups
    return
    ;;
  esac
  local group groups=()
  local -A chosen=()
  while (($#)) && [[ $1 != -- ]]; do
    if [[ $1 == all ]]; then
      for group in "${TEST_GROUPS[@]}"; do chosen[$group]=1; done
    elif [[ " ${TEST_GROUPS[*]} " == *" $1 "* ]]; then
      chosen[$1]=1
    else
      die "no test group '$1'. Groups: ${TEST_GROUPS[*]} all; gpu alone. Arguments come after --"
    fi
    shift
  done
  if (($#)); then shift; fi # the --
  for group in "${TEST_GROUPS[@]}"; do
    if ((${#chosen[@]})) && [[ -z ${chosen[$group]:-} ]]; then continue; fi
    if ! has_tests "$ROOT/tests/$(folder_of "$group")"; then
      echo "run.sh: test group $group: planned, not in this version; skipped" >&2
    else
      groups+=("$group")
    fi
  done
  ((${#groups[@]})) || die "none of these groups has tests in this version"
  if ((!${#chosen[@]})); then
    SHORT_SINCE=$(last_merge_base)
    export SHORT_SINCE
  fi
  offline
  trap 'exit 130' INT # after Ctrl-C pytest ends as if it had failed, and the next group would begin
  # engines need memory, up to 7 GB each: two, on any number of cores
  export PYTEST_XDIST_AUTO_NUM_WORKERS=${PYTEST_XDIST_AUTO_NUM_WORKERS:-2}
  RESULTS=() CODES=()
  local beside=()
  for group in "${groups[@]}"; do
    if [[ $group =~ ^(images|npu)$ && " ${groups[*]} " == *" cluster "* ]]; then
      beside+=("$group") # cluster is TEST_GROUPS' last
    elif [[ $group == cluster ]] && ((${#beside[@]})); then
      start_beside "${beside[@]}" -- "$@"
      run_group cluster "$@"
      finish_beside "${beside[@]}"
    else
      run_group "$group" "$@"
    fi
  done
  show_results "$@"
}

must_have_stack() { # must_have_stack PYTHON: what every command imports
  local said
  said=$("$1" -c 'import sys; from importlib.util import find_spec as find
print("lacks", *(name for name in sys.argv[1:] if find(name) is None))' psutil pydantic rich typer yaml 2>/dev/null) || :
  [[ $said == lacks* ]] || die "PYTHON=$1 is no Python 3: set it to the interpreter that has the stack"
  [[ $said == lacks ]] || die "PYTHON=$1 has not the stack (${said/lacks/no}): set it to the interpreter that has, or unset it"
}

run_module() { # run_module MODULE ARGS..: in the environment from the lock, or in the stack's own
  local python=${PYTHON:-}
  if [[ -z $python ]]; then
    set_up >&2 # stdout is for --json
    python=$VENV/bin/python
  fi
  command -v "$python" >/dev/null || die "no '$python': set PYTHON to the interpreter that has the stack"
  if [[ -n ${PYTHON:-} ]]; then must_have_stack "$python"; fi
  export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
  exec "$python" -m "$@"
}

run_bench() {
  local what=${1:-}
  case $what in
  refit) set -- --device cpu "${@:2}" ;;
  rollout | train | sync | convert | study) shift ;;
  *) die "bench: say which: refit rollout train sync convert study (./run.sh bench refit --help: options)" ;;
  esac
  [[ -d $ROOT/benchmarks ]] || die "bench: no benchmarks here, this image has none: mount a checkout, and start its run.sh"
  offline
  run_module "benchmarks.$what" "$@"
}

run_lint() {
  if (($#)); then
    [[ $1 == --contract ]] || die "lint: takes nothing but --contract RELEASE, not '$1'"
    run_module tools.contract "${@:2}"
  fi
  set_up
  cd "$ROOT"
  exec pre-commit run --all-files --show-diff-on-failure
}

asks_for_help() { # asks_for_help ARGS..: among what is before --
  local word
  for word in "$@"; do
    case $word in
    --help | -h) return 0 ;;
    --) return 1 ;;
    esac
  done
  return 1
}

show_help() { # show_help COMMAND ARGS..: with nothing installed; fails where the environment has to be asked
  local wanted="./run.sh $1"
  if [[ $1 == demo || $1 == smoke || $1 == data ]]; then wanted="ascend-quant $1"; fi # the package's own
  case $1 in
  help) usage ;;
  test | lint | setup) usage_of "$1" ;;
  bench) [[ $2 == -* ]] && usage_of bench ;;
  *)
    grep -qx "## $wanted\( .*\)\?" "$HELP" 2>/dev/null || return 1
    if grep -qxF "## $wanted $2" "$HELP"; then wanted="$wanted $2"; fi
    awk -v wanted="## $wanted" ' # a group of commands: the help of each
      /^## / { on = $0 == wanted || index($0, wanted " ") == 1; if (on && seen++) print "" }
      on && !/^(## |```)/
    ' "$HELP"
    ;;
  esac
}

main() {
  local command=${1-help}
  if (($#)); then shift; fi
  { : 3>&1; } 2>/dev/null || die "stdout is closed: what '$command' says would be lost"
  if asks_for_help "$@" && show_help "$command" "$@"; then return; fi
  case $command in
  demo)
    offline
    run_module ascend_quant.cli demo "$@"
    ;;
  smoke)
    offline
    run_module ascend_quant.cli smoke --doctor "$@"
    ;;
  test) run_tests "$@" ;;
  bench) run_bench "$@" ;;
  data) run_module ascend_quant.cli data "$@" ;;
  recipe | train | stop | doctor) run_module launch "$command" "$@" ;;
  lint) run_lint "$@" ;;
  setup)
    (($# == 0)) || die "setup: takes no arguments, not '$1'"
    set_up
    ;;
  help | -h | --help) usage ;;
  --version) sed -n 's/^version = "\(.*\)"$/ascend-quant \1/p' "$ROOT/pyproject.toml" ;;
  *)
    die "no command '$command'. Commands: ${COMMANDS[*]}"
    ;;
  esac
}

main "$@"
