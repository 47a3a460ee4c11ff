#!/usr/bin/env python3
"""archive.py ADDRESS SHA256 FOLDER: an archive, unpacked into FOLDER, if it is the very one that is pinned.

One with a single folder at its top gives what is in that folder, as CMake unpacks what it fetches. Any Python 3 that a
base brings will do; proxies and SSL_CERT_FILE hold.
"""

import hashlib
import re
import shutil
import sys
import tempfile
import urllib.request
from pathlib import Path

SECONDS = 120  # without a byte


def fetch(address: str, wanted: str, folder: Path) -> Path:
    """The file, of that hash and no other."""
    file = folder / address.rpartition("/")[2]
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer, file.open("wb") as copy:
            shutil.copyfileobj(answer, copy)
    except (OSError, ValueError) as error:
        sys.exit(f"archive.py: {address} could not be fetched: {error}")
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != wanted:
        sys.exit(f"archive.py: {address} has sha256 {found}; docker-bake.hcl pins {wanted}: nothing is taken of it")
    return file


def unpack(file: Path, scratch: Path, folder: Path) -> None:
    """Into the folder, which may have more in it."""
    try:
        shutil.unpack_archive(file, scratch)
    except (shutil.ReadError, ValueError) as error:
        sys.exit(f"archive.py: {file.name} is no archive that Python unpacks: {error}")
    top = list(scratch.iterdir())
    shutil.copytree(top[0] if len(top) == 1 and top[0].is_dir() else scratch, folder, symlinks=True, dirs_exist_ok=True)


def main(address: str, wanted: str, folder: str) -> None:
    """Fetch, look, unpack."""
    if not re.fullmatch("[0-9a-f]{64}", wanted):
        sys.exit(f"archive.py: {wanted!r} is no sha256, which has 64 digits of 0-9 and a-f")
    with tempfile.TemporaryDirectory() as scratch:
        fetched, content = Path(scratch, "fetched"), Path(scratch, "content")
        fetched.mkdir()
        content.mkdir()
        unpack(fetch(address, wanted, fetched), content, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
