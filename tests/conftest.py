"""Settings every test shares: nothing reaches a model hub, and vLLM keeps its engine in the test's process.

What is marked `long` is left out of a short check (`./run.sh test`), unless its file or a path that its mark names has
changed since the last merge base. What is marked `gpu` computes on an NVIDIA GPU (`./run.sh test gpu` runs just these);
elsewhere it is skipped, with no GPU, but for `gpu(interpreted=True)`: kernels that Triton's interpreter runs there.
"""

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The processes that tests start find launch/ there, which is not installed; pytest itself has it by pyproject.toml.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.getenv("PYTHONPATH")]))

SEVERAL_AT_ONCE = "PYTEST_XDIST_WORKER" in os.environ
LONGEST_FIRST = (  # else one process would be left with them when the others have ended
    "test_verl_run",
    "test_verl_apart",
    "test_qat_demo",
    "test_mismatch_command",
    "test_parallel",
    "test_readme_example",
    "test_trainers",
    "test_separate_core",
    "test_verl_data_parallel",
    "test_smoke_engine",
    "test_cluster_ray",
)

if SEVERAL_AT_ONCE:  # threads of one process would only wait for the cores of the other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

for name, value in {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}.items():
    os.environ.setdefault(name, value)


@pytest.fixture(autouse=True)
def same_environment():
    """Keep `os.environ` the object that it is: datasets puts a copy there (`num_proc`), which rich does not read."""
    own = os.environ
    yield
    os.environ = own  # noqa: B003  the very object


def pytest_collection_modifyitems(config, items):
    since = os.environ.get("SHORT_SINCE")  # set by run.sh in a short check alone; empty where git knows no merge base
    if since is not None:
        left_out = [item for item in items if is_left_out(item, since)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    if SEVERAL_AT_ONCE:
        rank = {name: number for number, name in enumerate(LONGEST_FIRST)}
        items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def is_left_out(item, since: str) -> bool:
    mark = item.get_closest_marker("long")
    assert mark is None or all((ROOT / path).exists() for path in mark.args), f"{item.nodeid} names what is not there"
    return mark is not None and not has_changed(since, (*mark.args, str(item.path.relative_to(ROOT))))


@cache
def has_changed(since: str, paths: tuple[str, ...]) -> bool:
    """Whether the working tree's files below these paths are others than those of a commit."""
    if not since:
        return False
    code = subprocess.run(["git", "-C", ROOT, "diff", "--quiet", since, "--", *paths]).returncode
    assert code in (0, 1), f"git diff {since} ended with {code}"
    return code == 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    mark = item.get_closest_marker("gpu")
    if mark is not None and not mark.kwargs.get("interpreted"):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")


def pytest_sessionfinish(session, exitstatus):
    """A run whose tests were all skipped has shown nothing: of the gpu tests, and in CI, it ends as if it had none."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")  # none in a worker of xdist
    must_show = session.config.option.markexpr == "gpu" or os.environ.get("CI") == "true"  # GitHub and others set CI
    if must_show and exitstatus == 0 and reporter and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
