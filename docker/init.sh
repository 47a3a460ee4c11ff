#!/bin/sh
# init.sh COMMAND ..: it under tini, which hands signals on and collects what has ended. An image on openEuler has no tini:
# `docker run --init`, which the launcher says, brings Docker's.
if command -v tini >/dev/null; then exec tini -s -- "$@"; fi
exec "$@"
