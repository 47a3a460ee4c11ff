"""What the tests of images share, made once: an engine, the stand-in base, the image of stack cpu."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_engine import base, cpu_image
from docker_engine.engine import Engine, engine

# As run.sh ends what runs beside cluster: the private engine goes with its gigabytes, as after Ctrl-C.
signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before tests/conftest.py leaves out what is long
def pytest_collection_modifyitems(items):
    for item in items:
        if "docker" in getattr(item, "fixturenames", ()):  # builds images, or looks into one that others share
            item.add_marker(pytest.mark.long("docker", "launch/manifest.py", "tests/docker_engine", "tests/images"))


@pytest.fixture(scope="session")
def docker_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("docker")


@pytest.fixture(scope="session")
def docker(docker_folder: Path) -> Iterator[Engine]:
    with engine(docker_folder / "engine") as running:
        yield running


@pytest.fixture(scope="session")
def stand_in_base(docker: Engine, docker_folder: Path) -> str:
    return base.make(docker, docker_folder)


@pytest.fixture(scope="session")
def cpu(docker: Engine, stand_in_base: str, docker_folder: Path) -> str:
    """The name of the cpu stack's image."""
    return cpu_image.build(docker, stand_in_base, docker_folder)
