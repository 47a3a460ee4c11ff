#!/bin/bash
# from_source.sh NAME ..: install these of SOURCES (NAME=REPOSITORY@COMMIT[#VERSION] ..) from /src (sources.sh) into
# /opt/venv, built against what is in it, with the archives that SOURCES has for them (NAME/PLACE=..) where they would
# fetch them. from_source.sh --except NAME ..: all others. pip writes the address and the commit into the package's
# metadata (PEP 610). Without tags the version has to be said to setuptools-scm.
set -euo pipefail

HOOKS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/hooks
readonly HOOKS

fail() {
  echo "from_source.sh: $*" >&2
  exit 1
}

from_src() { # git's settings: each repository of /src stands for its address, in pip's clone and in its submodules
  local repository address
  GIT_CONFIG_GLOBAL=$(mktemp)
  export GIT_CONFIG_GLOBAL
  git config --global protocol.file.allow always
  git config --global --add safe.directory '*'
  git config --global core.hooksPath "$HOOKS"
  for repository in /src/*.git; do
    address=$(git -C "$repository" config remote.origin.url)
    git config --global "url.$repository.insteadOf" "$address"
    git config --global --add "url.$repository.insteadOf" "$address.git"
  done
}

install() { # install NAME=REPOSITORY@COMMIT[#VERSION]
  local pinned=${1%%#*}
  local name=${pinned%%=*} address=${pinned#*=} version=
  local repository=${address%@*} commit=${address##*@}
  if [[ $1 == *'#'* ]]; then version=${1##*#}; fi
  [[ -n $(git ls-remote --heads "$repository" "pinned-$commit") ]] ||
    fail "$name: /src (the stage 'sources') lacks $repository at $commit"
  echo "$name ${version:+$version }from $repository at $commit"
  FILES=/src/files/$name env ${version:+"SETUPTOOLS_SCM_PRETEND_VERSION=$version"} \
    python -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps --no-build-isolation \
    "$name @ git+$repository@$commit"
}

main() {
  local all_but=0 source named chosen=0
  if [[ ${1:-} == --except ]]; then
    all_but=1
    shift
  fi
  export PATH=/opt/venv/bin:$PATH
  from_src
  for source in ${SOURCES:?is empty: docker/docker-bake.hcl has it}; do
    if [[ ${source%%=*} == */* ]]; then continue; fi # an archive
    named=0
    if [[ " $* " == *" ${source%%=*} "* ]]; then named=1; fi
    if ((named == all_but)); then continue; fi
    install "$source"
    chosen=$((chosen + 1))
  done
  ((all_but || chosen == $#)) || fail "not all of '$*' are in SOURCES: $SOURCES"
}

main "$@"
