#!/bin/bash
# cann.sh COMMAND ..: run it in the environment of CANN: the toolkit's, its BiSheng compiler's and NNAL's set_env.sh.
# The ENV of CANN's images has most of it, which is what `docker exec` and HEALTHCHECK see. And with jemalloc, unless
# ASCEND_QUANT_JEMALLOC=off.
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

memory_that_goes_back() { # Ray's and vLLM's processes live long: jemalloc returns what they free, glibc keeps it
  local library
  library=/usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2
  if [[ ! -f $library ]]; then library=/usr/lib64/libjemalloc.so.2; fi # openEuler's
  if [[ ${ASCEND_QUANT_JEMALLOC:-on} != off && -f $library ]]; then
    export LD_PRELOAD=$library${LD_PRELOAD:+:$LD_PRELOAD}
  fi
}

cann_environment
memory_that_goes_back
exec "$@"
