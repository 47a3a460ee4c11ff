#!/bin/bash
# What the images start: a verb, which run.sh carries out, or a program of the image (bash, python, ascend-quant, ray).
set -euo pipefail

HOME_OF_PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly HOME_OF_PROJECT
readonly VERBS=(smoke doctor demo train stop data recipe help)
readonly WRITING=(smoke demo train) # to /tmp, as torch, Ray and Python's tempfile do
readonly OF_CHECKOUTS=(test bench lint setup) # run.sh's other commands: here are no sources to work on
readonly FROM_A_CHECKOUT="mount a checkout and start that: docker run -v CHECKOUT:/src IMAGE /src/run.sh"

usage() {
  cat <<'EOF'
usage: docker run [OPTIONS] IMAGE VERB [ARGUMENTS]

  smoke [..]            does it work here? operators, three training steps, a refitted engine: one JSON file
  doctor [..]           look for what would stop a run, with fixes
  demo [..]             RL with an engine re-quantized in place every step, on CPUs
  train RECIPE [..]     train it on this machine, or with --cluster INVENTORY on its hosts
  stop [RUN]            end what a run started, on every host, and nothing else
  recipe list | show    what can be trained, and the verl command that it becomes
  data NAME [..]        prepare a data set
  help                  this text
  bash, python, ..      a program of the image

VERB --help has the options of each; docs/images.md of the project has those of docker run.
EOF
}

refuse() {
  echo "$1" >&2
  exit 2
}

main() {
  local verb=${1:-help}
  case $verb in
  help | -h | --help)
    usage
    exit
    ;;
  esac
  if [[ " ${WRITING[*]} " == *" $verb "* && " $* " != *" --help "* && ! -w /tmp ]]; then
    echo "/tmp cannot be written by uid $(id -u): docker run --tmpfs /tmp:exec" >&2
    exit 1
  fi
  if [[ " ${VERBS[*]} " == *" $verb "* ]]; then
    exec "$HOME_OF_PROJECT/run.sh" "$@"
  elif [[ " ${OF_CHECKOUTS[*]} " == *" $verb "* ]]; then
    refuse "$verb needs the sources: $FROM_A_CHECKOUT $verb .."
  elif ! type -P -- "$verb" >/dev/null; then
    refuse "no verb '$verb'. Verbs: ${VERBS[*]}; or a program of the image, such as bash"
  fi
  exec "$@"
}

main "$@"
