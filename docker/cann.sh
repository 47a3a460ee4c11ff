#!/bin/bash
# cann.sh COMMAND ..: run it in the environment of CANN: the toolkit's, its BiSheng compiler's and NNAL's set_env.sh.
# The ENV of CANN's images has most of it, which is what `docker exec` and HEALTHCHECK see.
set -eo pipefail # not -u: the vendor's files read variables that are not set

readonly ASCEND=${ASCEND_ROOT:-/usr/local/Ascend}

cann_environment() { # without arguments: what is sourced would read ours
  local file
  if [[ ! -f $ASCEND/ascend-toolkit/set_env.sh ]]; then
    echo "cann.sh: no $ASCEND/ascend-toolkit/set_env.sh: this image was not built on CANN's" >&2
    exit 1
  fi
  # shellcheck source=/dev/null
  source "$ASCEND/ascend-toolkit/set_env.sh"
  for file in "$ASCEND_HOME_PATH/share/info/ascendnpu-ir/bin/set_env.sh" "$ASCEND/nnal/atb/set_env.sh"; do
    # That ABI is the one of torch's wheels; NNAL's file would start torch to ask.
    # shellcheck source=/dev/null
    if [[ -f $file ]]; then source "$file" --cxx_abi=1; fi
  done
}

cann_environment
exec "$@"
