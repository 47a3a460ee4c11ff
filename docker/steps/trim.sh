#!/bin/sh
# trim.sh VENV: without what serves other projects' builds and tests, Ray's Java and RLlib, names of countries in all
# languages and TensorBoard's second reader of logs; and with bytecode, as the image's root may be read-only. Of hundreds
# of model files a run imports one or two: they stay as text.
set -eu

cd "$1"/lib/python*/site-packages
rm -rf torch/test ray/jars ray/rllib pycountry/locales tensorboard_data_server/bin
find . -path './torch/bin/*' -type f ! -name torch_shm_manager -delete
find . -name '*.a' -delete
find . -type d -name tests -prune -exec rm -rf {} +
"$1/bin/python" -m compileall -q -j 0 --invalidation-mode unchecked-hash -x '/models/' . ||
  echo "trim.sh: what is listed above is no Python of version $("$1/bin/python" -V): templates, left as they are"
