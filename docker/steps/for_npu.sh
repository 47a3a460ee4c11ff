#!/bin/bash
# for_npu.sh COMMAND ..: a build for NPUs where there is none and no driver: with CANN's stand-in for the driver's library,
# and without torch loading torch_npu by itself. Not for run time, where it would hide a missing driver.
set -euo pipefail

# CANN 8.5 has it below the processor's folder, as vllm-ascend's builds say; 9.1 below devlib, as verl's say.
machine=$(uname -m)
driver=$ASCEND_HOME_PATH/$machine-linux/devlib:$ASCEND_HOME_PATH/devlib/linux/$machine
export TORCH_DEVICE_BACKEND_AUTOLOAD=0 LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$driver"
exec "$@"
