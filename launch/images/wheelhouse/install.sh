#!/usr/bin/env bash
# install.sh VENV: make a virtual environment from this folder alone. Needs no network; checks every file before it starts.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly HERE

die() {
  printf 'install.sh: %s\n' "$@" >&2
  exit 1
}

check() { # this folder is whole, and was made for this machine
  [[ ! -s missing.txt ]] || die "this bundle is not complete; missing in it:" "$(<missing.txt)"
  sha256sum --quiet --check SHA256SUMS >&2 || die "files are damaged or gone (above): copy the folder again"
  local glibc=2.${PLATFORM##*_} here
  here=$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)
  [[ $PLATFORM == "$(uname -m)"-* ]] || die "this bundle is for $PLATFORM; this machine is $(uname -m)"
  printf '%s\n' "$glibc" "$here" | sort --check=silent --version-sort || die "glibc here is $here; this bundle needs $glibc"
  command -v "python$PYTHON_VERSION" >/dev/null || die "no python$PYTHON_VERSION on PATH: install Python $PYTHON_VERSION first"
}

uv_pip() { bin/uv pip install --quiet --python "$venv/bin/python" --no-index --no-deps "$@"; }

build_sources() { # built on this host, against its own CANN; --no-build-isolation: with the packages of the lock
  local name commit version scratch
  scratch=$(mktemp -d)
  while read -r name commit version; do
    echo "building $name at $commit" >&2
    tar xzf "sources/$name.tar.gz" -C "$scratch"
    [[ $version == - ]] || export SETUPTOOLS_SCM_PRETEND_VERSION=$version
    uv_pip --no-build-isolation "$scratch/$name" || die "$name could not be built: its compiler's message is above"
    unset SETUPTOOLS_SCM_PRETEND_VERSION
  done <sources/list.txt
  rm -rf "$scratch"
}

(($# == 1)) || {
  echo "usage: install.sh VENV: where the environment is made, as install.sh /opt/ascend-quant-venv" >&2
  exit 2
}
venv=$(realpath -m "$1")
[[ ! -e $venv ]] || die "$venv is there already: name a new folder, or remove it"
cd "$HERE"
# shellcheck source=/dev/null
. ./bundle.env
check
export UV_OFFLINE=1 UV_NO_CONFIG=1 UV_FIND_LINKS="$HERE/wheels" UV_CACHE_DIR="$venv.cache" UV_PYTHON_DOWNLOADS=never
trap 'rm -rf "$venv.cache"' EXIT
bin/uv venv --quiet --python "python$PYTHON_VERSION" "$venv"
uv_pip --require-hashes -r lock.txt
[[ ! -s sdists.txt ]] || UV=$HERE/bin/uv project/docker/steps/sdists.sh "$venv" sdists.txt --no-index
export PATH="$venv/bin:$PATH"
build_sources
uv_pip ours/*.whl
echo "$TARGET is ready. Next: PYTHON=$venv/bin/python $HERE/project/run.sh doctor" >&2
