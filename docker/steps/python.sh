#!/bin/sh
# python.sh VENV PYTHON LOCK ..: put into VENV exactly what the locks list, every file by its hash. /uv has uv (uv.sh), and
# /locks/uv.txt what packages without a wheel are built with.
# TORCH_BACKEND=cpu takes torch from PyTorch's CPU index, whose address uv knows; unless /wheels has it.
set -eu
# shellcheck source=docker/steps/index.sh
. "$(dirname "$0")/index.sh"

venv=$1 python=$2
shift 2
if [ -n "${TORCH_BACKEND:-}" ] && [ -z "$(find /wheels -name 'torch-*.whl')" ]; then export UV_TORCH_BACKEND="$TORCH_BACKEND"; fi
[ -x "$venv/bin/python" ] || /uv/bin/uv venv --quiet --python "$python" "$venv"
for lock; do
  /uv/bin/uv pip install --python "$venv/bin/python" --no-deps --require-hashes --link-mode copy \
    --build-constraint /locks/uv.txt -r "$lock"
done
