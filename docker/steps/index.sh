# shellcheck shell=sh
# Sourced: where packages come from. INDEX_URL and EXTRA_INDEX_URL: the package indexes, if not the usual one. Files in
# /wheels are taken first. A certificate authority of one's own comes as the secret "ca". Nothing of it stays in a layer.
if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca PIP_CERT=/run/secrets/ca GIT_SSL_CAINFO=/run/secrets/ca; fi
if [ -n "${INDEX_URL:-}" ]; then export PIP_INDEX_URL="$INDEX_URL" UV_DEFAULT_INDEX="$INDEX_URL"; fi
if [ -n "${EXTRA_INDEX_URL:-}" ]; then export PIP_EXTRA_INDEX_URL="$EXTRA_INDEX_URL" UV_INDEX="$EXTRA_INDEX_URL"; fi
if [ -d /wheels ]; then export PIP_FIND_LINKS=/wheels UV_FIND_LINKS=/wheels; fi
