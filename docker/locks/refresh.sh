#!/usr/bin/env bash
# Writes the locks anew from their .in files. Needs Python 3.11 and a package index; downloads metadata only.
#   docker/locks/refresh.sh                      keep every pin that still fits
#   docker/locks/refresh.sh --upgrade            newest of everything that is not pinned in the .in file
#   docker/locks/refresh.sh --upgrade-package X  newest X
set -euo pipefail

UV_VERSION=0.13.8
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

header() { # header NAME
  cat <<EOF
# Lock of stack $1, written by docker/locks/refresh.sh from $1.in: do not edit.
# Linux, Python 3.11. Hashes: every file of each release. Closed: installed with --no-deps by install.sh, after
# torch: $(sed -n 's/^# torch: //p' "$HERE/$1.in")
# which is not below: its CPU build comes from another index, with other hashes, than the CUDA build of the same name.

EOF
}

lock() { # lock NAME [UV OPTION ..]
  local name=$1 out="$TMP/$1.txt"
  local overrides=()
  shift
  if [[ -f $HERE/$name.overrides.txt ]]; then overrides=(--override "$HERE/$name.overrides.txt"); fi
  if [[ -f $HERE/$name.txt ]]; then cp "$HERE/$name.txt" "$out"; fi # uv keeps the pins it finds here
  "$TMP/venv/bin/uv" pip compile "$HERE/$name.in" -o "$out" --quiet \
    --excludes "$HERE/excludes.txt" "${overrides[@]}" \
    --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
    --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links "$@"
  # The only packages that exist for x86_64 alone.
  sed -i -E "s/^(intel-[a-z-]+==[^ ]+) /\1 ; platform_machine == 'x86_64' /" "$out"
  if grep -qiE '^(torch|nvidia-|cuda-)[a-z0-9-]*==|://' <(grep -vE '^torch(data|-npu)==' "$out"); then
    echo "refresh.sh: $name: torch, a CUDA package or an address is in the lock" >&2
    return 1
  fi
  { header "$name" && cat "$out"; } >"$HERE/$name.txt.new"
  mv "$HERE/$name.txt.new" "$HERE/$name.txt"
  echo "$name.txt: $(grep -cE '^[a-z0-9]' "$HERE/$name.txt") packages"
}

main() {
  local in
  TMP=$(mktemp -d)
  trap 'rm -rf "$TMP"' EXIT
  python3.11 -m venv "$TMP/venv"
  "$TMP/venv/bin/pip" install --quiet --disable-pip-version-check "uv==$UV_VERSION"
  for in in "$HERE"/*.in; do
    lock "$(basename "$in" .in)" "$@"
  done
}

main "$@"
