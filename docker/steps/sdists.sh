#!/bin/sh
# sdists.sh VENV LIST: build the source distributions of a list, each by its hash, with what is in VENV: torch, its
# tools, and CUDA's headers in NVIDIA's packages. UV=PROGRAM: uv, if it is not in /uv. MAX_JOBS: compilers at once, each
# with up to 2 GB; else as many as there are cores. Needs g++ and Python's headers.
set -eu
# shellcheck source=docker/steps/index.sh
. "$(dirname "$0")/index.sh"

nvidia=$(echo "$1"/lib/python*/site-packages/nvidia)
export CUDA_HOME="$nvidia/cu13" CPATH="$nvidia/cudnn/include:$nvidia/nccl/include"
export NVTE_PYTORCH_FORCE_BUILD=TRUE # TransformerEngine's setup.py looks for a wheel on GitHub before it builds
export PATH="$1/bin:$PATH"           # ninja
"${UV:-/uv/bin/uv}" pip install --python "$1/bin/python" --no-deps --require-hashes --no-build-isolation \
  --no-binary :all: --link-mode copy -r "$2"
