#!/usr/bin/env bash
# lock.sh NAME ..|--all [--upgrade]: resolve NAME.in into NAME.txt, closed and with the hashes of every file, for Linux on
# x86_64 and aarch64. Versions that NAME.txt has stay where NAME.in allows them; --upgrade takes the newest.
#
# Needs uv (uv.in has its version: pip install uv==..) and the package index. UV_INDEX names further indexes: PyTorch's
# CPU index for torch +cpu, Huawei's for triton-ascend. The first comments of NAME.in are settings: `# python: 3.11`;
# `# torch: 2.13.0+cpu` where torch is installed first, from another index; `# leave out: NAME ..` for packages that are
# wanted for their requirements alone. Beside it, NAME.overrides.txt changes what packages require, and
# NAME.excludes.txt, else excludes.txt, names what must not be in the lock. NAME.torch.in and trainers.in list packages
# alone, without what they require.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

setting() { sed -n "s/^# $2: //p" "$1.in"; }

header() { # header NAME: install.sh reads the line about torch
  echo "# Lock $1, written by docker/locks/lock.sh from $1.in: do not edit."
  echo "# Linux, Python $(setting "$1" python). Hashes: every file of each release. Closed: installed with --no-deps."
  if [[ -n $(setting "$1" torch) ]]; then
    echo "# torch: $(setting "$1" torch)"
    echo "# is installed before it: its build for this stack is in another index."
  fi
  echo
}

project_for() { # project_for PYTHON: a project whose settings say what a lock is for; uv takes them from nowhere else
  local machine project
  project=$(mktemp -d)
  {
    echo '[tool.uv]'
    echo 'environments = ['
    for machine in x86_64 aarch64; do
      echo "  \"python_full_version < '${1%.*}.$((${1#*.} + 1))' and implementation_name == 'cpython'" \
        "and platform_machine == '$machine' and platform_python_implementation == 'CPython' and sys_platform == 'linux'\","
    done
    echo ']'
  } >"$project/pyproject.toml"
  echo "$project"
}

# The markers that uv writes, without what holds for each package of such a lock.
readonly SHORTER="s/(python_full_version < '[0-9.]+'|implementation_name == 'cpython') and //g
s/ and (platform_python_implementation == 'CPython'|sys_platform == 'linux')//g
s/ ; \(platform_machine == 'aarch64'\) or \(platform_machine == 'x86_64'\)//"

lock() { # lock NAME [--upgrade]
  local name=$1 package excludes=excludes.txt resolved project
  project=$(project_for "$(setting "$name" python)")
  local options=(--universal "--python-version=$(setting "$name" python)" --no-python-downloads --generate-hashes)
  options+=(--fork-strategy=fewest) # one version a package, also where a newer one asks for a later patch release of Python
  options+=(--no-header --no-annotate --no-emit-index-url --no-emit-find-links)
  if [[ $name == *.torch || $name == trainers ]]; then
    options+=(--no-deps)
  else
    if [[ -f $name.excludes.txt ]]; then excludes=$name.excludes.txt; fi
    options+=("--excludes=$excludes")
    if [[ -f $name.overrides.txt ]]; then options+=("--override=$name.overrides.txt"); fi
  fi
  for package in $(setting "$name" "leave out"); do options+=("--no-emit-package=$package"); done
  resolved=$(mktemp)
  if [[ -f $name.txt ]]; then cp "$name.txt" "$resolved"; fi # uv keeps the versions that it finds there
  uv pip compile --quiet "--project=$project" "${options[@]}" "${@:2}" --output-file="$resolved" "$name.in"
  { header "$name" && grep -v '^#' "$resolved" | sed -E "$SHORTER"; } >"$name.txt"
  rm -r "$resolved" "$project"
}

names=() upgrade=()
for word; do
  case $word in
  --all) for file in *.in; do names+=("${file%.in}"); done ;;
  --upgrade) upgrade=(--upgrade) ;;
  *) names+=("$word") ;;
  esac
done
((${#names[@]})) || { echo "usage: lock.sh NAME ..|--all [--upgrade]" >&2; exit 2; }
for name in "${names[@]}"; do
  [[ -f $name.in ]] || { echo "lock.sh: no $name.in in docker/locks" >&2; exit 2; }
done
for name in "${names[@]}"; do lock "$name" "${upgrade[@]}"; done
