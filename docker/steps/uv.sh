#!/bin/sh
# uv.sh FOLDER PYTHON LOCK: uv, which installs everything else, as FOLDER/bin/uv; the lock is docker/locks/uv.txt.
set -eu
# shellcheck source=docker/steps/index.sh
. "$(dirname "$0")/index.sh"

"$2" -m venv "$1"
"$1/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$3"
