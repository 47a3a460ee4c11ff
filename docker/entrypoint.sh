#!/bin/bash
# What the images start: a verb of run.sh, or a program of the image (bash, python, ascend-quant, ray).
set -euo pipefail

readonly HOME_OF_PROJECT=${ASCEND_QUANT_HOME:-/opt/ascend-quant}
readonly VERBS=(smoke doctor demo train stop data recipe manifest help)
readonly CHECKED=(smoke demo train) # these compute: what would stop them is said first, in one line

main() {
  local verb=${1:-help}
  if [[ " ${VERBS[*]} " == *" $verb "* ]]; then
    if [[ " ${CHECKED[*]} " == *" $verb "* ]]; then python -m launch preflight -- "$@" || exit; fi
    exec "$HOME_OF_PROJECT/run.sh" "$@"
  fi
  if ! command -v -- "$verb" >/dev/null; then
    echo "no verb '$verb'. Verbs: ${VERBS[*]}; or a program of the image, such as bash" >&2
    exit 2
  fi
  exec "$@"
}

main "$@"
