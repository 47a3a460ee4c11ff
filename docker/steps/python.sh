#!/bin/sh
# python.sh VENV PYTHON LOCK ..: put into VENV exactly what the locks list, every file by its hash. /uv has uv (uv.sh), and
# /locks/uv.txt what packages without a wheel are built with. A torch of the form 2.13.0+cpu is on PyTorch's CPU index,
# whose address uv knows; unless /wheels has it.
set -eu
# shellcheck source=docker/steps/index.sh
. "$(dirname "$0")/index.sh"

asks_for_cpu_torch() { # asks_for_cpu_torch LOCK ..: on this processor; PyTorch's CPU index has not what is for others
  grep -hE '^torch==[^ ;]+\+cpu' "$@" | grep -qE "^[^;]*$|; platform_machine == '$(uname -m)'"
}

venv=$1 python=$2
shift 2
if asks_for_cpu_torch "$@" && [ -z "$(find /wheels -name 'torch-*.whl')" ]; then export UV_TORCH_BACKEND=cpu; fi
[ -x "$venv/bin/python" ] || /uv/bin/uv venv --quiet --python "$python" "$venv"
for lock; do
  /uv/bin/uv pip install --python "$venv/bin/python" --no-deps --require-hashes --link-mode copy \
    --build-constraint /locks/uv.txt -r "$lock"
done
