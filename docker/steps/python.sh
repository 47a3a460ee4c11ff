#!/bin/sh
# python.sh VENV PYTHON LOCK ..: put into VENV exactly what the locks list, every file by its hash. /uv has uv (uv.sh), and
# /locks/uv.txt what packages without a wheel are built with.
set -eu
# shellcheck source=docker/steps/index.sh
. "$(dirname "$0")/index.sh"

of_torch() { # of_torch LOCK: cpu, where it asks this processor for torch's CPU build (==VERSION+cpu)
  # uv takes that from PyTorch's CPU index, whose address it knows, and asks no other for torch and its companions: so not
  # for a lock without torch, nor where the usual index has the build. /wheels comes first.
  sed -nE "s/^torch==[^ ]+\+(cpu) (\\\\|; .*'$(uname -m)').*/\1/p" "$1"
}

venv=$1 python=$2
shift 2
[ -x "$venv/bin/python" ] || /uv/bin/uv venv --quiet --python "$python" "$venv"
for lock; do
  backend=
  if [ -z "$(find /wheels -name 'torch-*.whl')" ]; then backend=$(of_torch "$lock"); fi
  env ${backend:+"UV_TORCH_BACKEND=$backend"} \
    /uv/bin/uv pip install --python "$venv/bin/python" --no-deps --require-hashes --link-mode copy \
    --build-constraint /locks/uv.txt -r "$lock"
done
