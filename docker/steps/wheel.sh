#!/bin/sh
# wheel.sh SOURCES FOLDER: this project's wheel, with the setuptools beside uv; needs no network.
set -eu

mkdir -p "$2"
cd "$1"
/uv/bin/python -c 'import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])' "$2" >/dev/null
