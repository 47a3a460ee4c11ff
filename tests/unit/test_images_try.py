"""`images try`: what is wanted of a lock, which modules are imported, and which failures are the lock's own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launch.images.lock import packages
from launch.images.lock.importer import modules
from launch.images.lock.trial import IMPORTER, Imported, Trial, wanted


def install(folder: Path, name: str, files: dict[str, str]) -> None:
    """A package in a folder of packages."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))


@pytest.fixture
def there(tmp_path: Path, monkeypatch) -> Path:
    install(
        tmp_path, "good-one", {"good/__init__.py": "print('noise')", "good/deep/more.py": "1 / 0", "_c.py": "1 / 0"}
    )
    install(tmp_path, "old", {"old.py": "import good\nif not hasattr(good, 'Type'): raise AttributeError('no Type')"})
    install(tmp_path, "ends", {"ends.py": "raise SystemExit(0)", "data/file.py": "1 / 0"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_modules_at_the_top_alone(there: Path):
    assert modules("good-one") == ["good"] and modules("ends") == ["ends"]


def test_each_import_is_told_whatever_modules_print_or_do(there: Path):
    done = subprocess.run([sys.executable, IMPORTER, "old", "ends", "good-one"], capture_output=True, text=True)
    assert done.returncode == 0 and "noise" in done.stderr
    rows = {module: error for _, module, error in json.loads(done.stdout)}
    assert rows["good"] is None and rows["old"].startswith("AttributeError") and rows["ends"].startswith("SystemExit")


def test_a_failure_is_the_locks_own_unless_it_lacks_what_they_do_not_bring():
    failures = {
        "datasets": "AttributeError: module 'pyarrow' has no attribute 'PyExtensionType'",
        "accelerate": "ModuleNotFoundError: No module named 'torch'",
        "vllm": "ModuleNotFoundError: No module named 'setuptools_rust'",
        "torch_npu": "ImportError: libhccl.so: cannot open shared object file",
    }
    imported = [Imported(name, name, error) for name, error in failures.items()] + [Imported("six", "six", None)]
    assert [one.module for one in Trial(imported, {}, {"six"}).failed] == ["datasets", "vllm"]
    assert [one.module for one in Trial(imported, {}, {"torch"}).failed] == ["datasets", "accelerate", "vllm"]


def test_what_is_left_out_of_a_lock_is_not_wanted(tmp_path: Path):
    text = "# python: 3.10\n# leave out: vllm\n-c other.txt\nvllm==0.10.1  # why\nray[default]==2.60.0\nPyYAML>=6\n"
    (tmp_path / "one.in").write_text(text)
    assert wanted(packages.Lock("one", tmp_path)) == ["ray", "pyyaml"]
