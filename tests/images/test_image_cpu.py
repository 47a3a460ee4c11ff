"""The image of stack cpu: what it is, that it works as nobody in particular on a read-only root, and what it says."""

import json
import platform
import time
import uuid

import pytest
from bake_file import arguments
from docker_engine import cpu_image
from docker_engine.engine import Engine
from unit.lock_file import installed, of_stack

from launch import ROOT

pytestmark = pytest.mark.timeout(1500)

LARGEST, CHANGED = 2.8e9, 30e6  # bytes: of the image, and of what a changed file adds to a registry
LOCKED_DOWN = ("--rm", "--read-only", "--tmpfs", "/tmp:exec", "--network", "none", "--shm-size", "2g")
SMOKE_SECONDS = 800
MANIFEST = ("python", "-m", "launch.manifest")
MACHINE = platform.machine()


def inspected(docker: Engine, image: str) -> dict:
    return json.loads(docker.docker("image", "inspect", image).stdout)[0]


def test_it_is_small_labelled_and_nobodys(docker, cpu):
    image = inspected(docker, cpu)
    config = image["Config"]
    assert image["Size"] < LARGEST, f"{image['Size'] / 1e9:.2f} GB"
    assert config["User"] == "1000" and config["WorkingDir"] == "/work"
    labels = config["Labels"]
    assert labels["ascend-quant.stack"] == "cpu"
    assert labels["org.opencontainers.image.base.name"] == arguments("cpu")["BASE"]
    for name in ("title", "description", "version", "revision", "licenses"):
        assert labels[f"org.opencontainers.image.{name}"], name


def test_nothing_of_where_it_was_built_is_in_it(docker, cpu):
    """No certificate, no index, no mirror of ours: neither in the history nor in the files of apt and pip."""
    history = docker.docker("history", "--no-trunc", cpu).stdout + json.dumps(inspected(docker, cpu)["Config"])
    assert "://" not in history and "secret" not in inspected(docker, cpu)["Config"]["Env"]
    seen = docker.docker(
        *("run", "--rm", "--user", "0", cpu, "bash", "-c"),
        "ls /var/lib/apt/lists /var/cache/apt/archives /root; cat /etc/pip.conf /root/.config/pip/pip.conf; "
        "find / -xdev -newer /etc/os-release -name '*.pem' -path '*secret*'",
    ).stdout
    assert "_dists_" not in seen and ".deb" not in seen and "index-url" not in seen and "pem" not in seen


def test_smoke_as_anybody_on_a_read_only_root(docker, cpu, tmp_path):
    """All of it applies here and passes: three training steps among it, and the NaN after them."""
    tmp_path.chmod(0o777)
    options = (*LOCKED_DOWN, "--user", "12345:12345", "-v", f"{tmp_path}:/work")
    done = docker.tried("run", *options, cpu, "smoke", "--out", "/work/smoke.json", timeout=SMOKE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["name"]: one for one in json.loads((tmp_path / "smoke.json").read_text())["probes"]}
    assert {name: one["status"] for name, one in found.items()} == dict.fromkeys(
        ("doctor", "versions", "libraries", "operators.schemes", "train", "train.nan", "engine.refit"), "ok"
    )
    receipts = found["train"]["values"]["receipts"]
    assert len(receipts) == 3 and all(one["proved"] == one["tensors"] > 0 for one in receipts)


@pytest.fixture
def idle(docker: Engine, cpu: str):
    """Starts containers that do nothing; they end with the test."""
    names = []

    def start(*options: str) -> str:
        names.append(f"ascend-quant-test-{uuid.uuid4().hex[:8]}")
        docker.docker("run", "-d", "--init", "--name", names[-1], *options, cpu, "sleep", "600")
        return names[-1]

    yield start
    docker.tried("rm", "--force", *names)


def health(docker: Engine, container: str, wanted: str) -> str:
    """Waits until the health is as wanted; what the last check printed."""
    for _ in range(120):
        said = json.loads(docker.docker("inspect", "--format", "{{json .State.Health}}", container).stdout)
        if said["Status"] == wanted:
            return said["Log"][-1]["Output"]
        time.sleep(0.5)
    raise AssertionError(f"not {wanted}: {said}")


def test_health(docker, cpu, idle):
    assert "healthcheck.sh" in str(inspected(docker, cpu)["Config"]["Healthcheck"]["Test"])
    container = idle("--health-interval", "1s", "--tmpfs", "/tmp:exec,size=8m")
    health(docker, container, "healthy")
    docker.docker("exec", container, "dd", "if=/dev/zero", "of=/tmp/full", "bs=1M", "count=8")
    assert "/tmp is" in health(docker, container, "unhealthy")


def test_it_is_made_of_what_the_locks_pin_and_says_its_commit(docker, cpu):
    made = json.loads(docker.docker("run", "--rm", "--network=none", cpu, *MANIFEST).stdout)
    packages = {name: package["version"] for name, package in made["packages"].items()}
    assert (
        packages.pop("ascend-quant") == inspected(docker, cpu)["Config"]["Labels"]["org.opencontainers.image.version"]
    )
    assert packages == {name: version for lock in of_stack("cpu") for name, version in installed(lock, MACHINE).items()}
    assert made["revision"] == cpu_image.revision() and made["python"].startswith("3.11.")
    inside = docker.docker("run", "--rm", cpu, "python", "-c", "import torch, vllm, verl; print(torch.__version__)")
    assert packages["torch"] == inside.stdout.split()[-1]


def test_two_builds_have_one_manifest(docker, cpu, stand_in_base, docker_folder):
    second = cpu_image.build(
        docker, stand_in_base, docker_folder, name="ascend-quant:test-again", options=("--no-cache",)
    )
    texts = [docker.docker("run", "--rm", image, *MANIFEST).stdout for image in (cpu, second)]
    assert inspected(docker, second)["Id"] != inspected(docker, cpu)["Id"]
    assert texts[0] == texts[1] and json.loads(texts[0])["packages"]["ray"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--shm-size", "16m"), "--shm-size"),
        (("--tmpfs", "/tmp:noexec", "--shm-size", "2g"), "/tmp is mounted noexec"),
    ],
)
def test_the_doctor_says_what_would_stop_a_run(docker, cpu, options, line):
    done = docker.tried("run", "--rm", *options, cpu, "doctor")
    assert done.returncode == 1 and line in done.stdout, done


def test_programs_of_the_image(docker, cpu):
    """bash and python are started as they are: the launcher's node process comes in this way."""
    assert docker.docker("run", "--rm", cpu, "bash", "-c", "id -un; pwd").stdout.split() == ["ascend-quant", "/work"]
    helped = docker.docker("run", "--rm", cpu, "python", "-m", "launch", "--help").stdout
    assert "train" in helped and "doctor" in helped
    listed = docker.docker("run", "--rm", cpu, "recipe", "list", "--json").stdout
    assert "addition-int8" in listed


def test_one_may_extend_it(docker, cpu, tmp_path):
    """As docs/images.md says: git and ssh are there, and what pip installs, as root, is found beside the rest."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n')
    (tmp_path / "mine.py").touch()
    options = ("--rm", "--network=none", "--user=0", "-v", f"{tmp_path}:/src")
    line = "git --version && ssh -V && pip install --quiet --no-index --no-build-isolation /src"
    line += " && python -c 'import mine, torch, ascend_quant, launch; print(mine.__file__)'"
    done = docker.tried("run", *options, cpu, "bash", "-c", line, timeout=300)
    assert done.returncode == 0 and "/opt/venv/lib" in done.stdout, done


@pytest.mark.usefixtures("cpu")
def test_a_changed_project_file_is_a_small_layer(docker, stand_in_base, docker_folder, tmp_path):
    """What a registry that has the image receives of the next: the packages are in both, to the byte.

    Both are built here: another test builds without a cache, and leaves layers of its own in it.
    """
    tree = cpu_image.tree(tmp_path / "tree")
    before = cpu_image.build(docker, stand_in_base, docker_folder, name="ascend-quant:test-before", root=tree)
    for file in ("launch/commands/train.py", "ascend_quant/schemes/registry.py", "configs/demo/demo.yaml"):
        (tree / file).write_text((tree / file).read_text() + "\n# another line\n")
    name = "ascend-quant:test-changed"
    cpu_image.build(docker, stand_in_base, docker_folder, name=name, root=tree)
    first, second = (inspected(docker, image)["RootFS"]["Layers"] for image in (before, name))
    history = docker.docker("history", "--human=false", "--no-trunc", "--format", "{{.Size}} {{.CreatedBy}}", name)
    lines = history.stdout.splitlines()
    packages = next(place for place, line in enumerate(lines) if "/opt/venv /opt/venv" in line)  # newest first
    below = len([line for line in lines[packages:] if not line.startswith("0 ")])
    assert second[:below] == first[:below] and second != first
    assert sum(int(line.partition(" ")[0]) for line in lines[:packages]) < CHANGED


@pytest.mark.parametrize("more", [(), ("rdma",), ("hccn",)], ids=lambda more: "".join(more) or "alone")
def test_the_compose_files_are_well_formed(docker, more):
    files = [ROOT / "docker" / f"compose{end}.yaml" for end in ("", *(f".{one}" for one in more))]
    docker.docker("compose", *(word for file in files for word in ("-f", file)), "config", "--quiet")
