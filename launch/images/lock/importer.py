"""importer.py PACKAGE ..: import every module that these packages brought, and print as JSON how each import ended.

Run by the interpreter of an environment that is tried (trial.py): it uses nothing but the standard library.
"""

import importlib
import json
import os
import sys
from importlib.metadata import distribution

DEEPER = {"verl": ["verl.trainer.main_ppo"]}  # a package that imports little by itself


def modules(package: str) -> list[str]:
    """What it has at the top of site-packages, and where that is little, a part that imports the rest."""
    files = [file for file in distribution(package).files or [] if file.suffix in (".py", ".so")]
    tops = {file.parts[0].partition(".")[0] for file in files if len(file.parts) < 2 or file.parts[1] == "__init__.py"}
    return sorted(name for name in tops if name.isidentifier() and not name.startswith("_")) + DEEPER.get(package, [])


def tried(module: str) -> str | None:
    """How its import failed, if it did."""
    try:
        importlib.import_module(module)
    except BaseException as error:  # a module may end the interpreter, too
        return f"{type(error).__name__}: {error}"
    return None


def main(packages: list[str]) -> None:
    """Standard output is for the answer alone, whatever modules print as they are imported."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    packages = sorted(packages, key=lambda name: (name != "setuptools", name))  # it has to come before distutils
    rows = [(package, module, tried(module)) for package in packages for module in modules(package)]
    answer.write(json.dumps(rows))
    answer.flush()
    os._exit(0)  # without waiting for what the modules have started


if __name__ == "__main__":
    main(sys.argv[1:])
