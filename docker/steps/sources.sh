#!/bin/sh
# sources.sh FOLDER NAME=REPOSITORY@COMMIT[#VERSION] NAME/PLACE=ADDRESS#sha256:DIGEST ..: exactly these commits, and the
# submodules that they name, at the commits that they name: in one bare repository for each address, which knows it as
# remote.origin.url. And exactly these archives, unpacked in FOLDER/files, for that place in the checkout of NAME.
# With their history: without it pip's clone never ends (a partial clone of a shallow one; git 2.39, pip 26).
set -eu
# shellcheck source=docker/steps/index.sh
. "$(dirname "$0")/index.sh"

fail() {
  echo "sources.sh: $*" >&2
  exit 1
}

place() { # place FOLDER ADDRESS: with or without .git it is the same repository
  echo "$1/$(echo "${2#*://}" | sed 's|\.git$||; s|[^A-Za-z0-9.-]|_|g').git"
}

fetch() { # fetch FOLDER ADDRESS COMMIT
  fetch_into "$(place "$1" "$2")" "$2" "$3"
  fetch_submodules "$1" "$(place "$1" "$2")" "$3"
}

fetch_into() { # fetch_into REPOSITORY ADDRESS COMMIT
  git init -q --bare "$1"
  git -C "$1" config remote.origin.url "${2%.git}"
  git -C "$1" fetch -q --no-tags "$2" "$3:refs/heads/pinned-$3" || fail "no commit $3 could be fetched from $2"
  [ "$(git -C "$1" rev-parse "refs/heads/pinned-$3^{commit}")" = "$3" ] || fail "$2 sent another commit than $3"
  git -C "$1" symbolic-ref HEAD "refs/heads/pinned-$3"
  echo "$2 $3"
}

fetch_submodules() { # fetch_submodules FOLDER REPOSITORY COMMIT
  git -C "$2" cat-file -e "$3:.gitmodules" 2>/dev/null || return 0
  git -C "$2" config --blob "$3:.gitmodules" --get-regexp '^submodule\..*\.path$' >"$2/submodules-$3"
  while read -r key path; do
    fetch "$1" "$(git -C "$2" config --blob "$3:.gitmodules" "${key%.path}.url")" "$(git -C "$2" rev-parse "$3:$path")"
  done <"$2/submodules-$3"
}

unpack() { # unpack FOLDER NAME/PLACE=ADDRESS#sha256:DIGEST
  pinned=${2#*=}
  python3 "$(dirname "$0")/archive.py" "${pinned%#*}" "${pinned##*#sha256:}" "$1/files/${2%%=*}" ||
    fail "no archive for ${2%%=*}: the reason stands above"
  echo "$pinned"
}

folder=$1
shift
for source; do
  if [ "$source" != "${source#*#sha256:}" ]; then
    unpack "$folder" "$source"
    continue
  fi
  pinned=${source%%#*}
  address=${pinned#*=}
  echo "${address##*@}" | grep -qE '^[0-9a-f]{40}$' || fail "'$source' is not NAME=REPOSITORY@COMMIT with all 40 digits"
  fetch "$folder" "${address%@*}" "${address##*@}"
done
