#!/bin/sh
# ours.sh VENV WHEEL LAUNCH HOME: this project: its wheel into VENV, its launcher (the folder LAUNCH) into HOME, both
# with bytecode. In a layer of its own: it changes with each commit, and what is in VENV before it with the locks.
set -eu

/uv/bin/uv pip install --quiet --no-cache --python "$1/bin/python" --no-deps --no-index --link-mode copy "$2"/*.whl
mkdir -p "$4"
cp -R "$3" "$4/launch"
"$1/bin/python" -m compileall -q --invalidation-mode unchecked-hash \
  "$1"/lib/python*/site-packages/ascend_quant "$4/launch"
