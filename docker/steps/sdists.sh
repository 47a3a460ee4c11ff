#!/bin/sh
# sdists.sh VENV LIST [OPTION ..]: build the source distributions of a list, each by its hash, with what is in VENV:
# torch, its tools, and CUDA's headers in NVIDIA's packages. OPTION: uv's. UV=PROGRAM: uv, if it is not in /uv.
# MAX_JOBS: compilers at once, each with up to 2 GB; else as many as there are cores. Needs g++ and Python's headers.
set -eu
# shellcheck source=docker/steps/index.sh
. "$(dirname "$0")/index.sh"

venv=$1 list=$2
shift 2
nvidia=$(echo "$venv"/lib/python*/site-packages/nvidia)
export CUDA_HOME="$nvidia/cu13" CPATH="$nvidia/cudnn/include:$nvidia/nccl/include"
export NVTE_PYTORCH_FORCE_BUILD=TRUE # TransformerEngine's setup.py looks for a wheel on GitHub before it builds
export PATH="$venv/bin:$PATH"        # ninja
"${UV:-/uv/bin/uv}" pip install --python "$venv/bin/python" --no-deps --require-hashes --no-build-isolation \
  --no-binary :all: --link-mode copy -r "$list" "$@"
