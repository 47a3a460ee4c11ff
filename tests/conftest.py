"""Settings every test shares: nothing reaches a model hub, and vLLM keeps its engine in the test's process.

What is marked `gpu` computes on an NVIDIA GPU (`./run.sh test gpu` runs just these). Elsewhere it is skipped, but for
`gpu(interpreted=True)`: kernels that Triton's interpreter runs there.
"""

import os
from pathlib import Path

import pytest

# The processes that tests start find launch/ there, which is not installed; pytest itself has it by pyproject.toml.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.getenv("PYTHONPATH")]))

SEVERAL_AT_ONCE = "PYTEST_XDIST_WORKER" in os.environ
LONGEST_FIRST = (  # else one process would be left with them when the others have ended
    "test_verl_run",
    "test_verl_apart",
    "test_qat_demo",
    "test_mismatch_command",
    "test_study_run",
    "test_parallel",
    "test_readme_example",
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


def pytest_collection_modifyitems(items):
    if SEVERAL_AT_ONCE:
        rank = {name: number for number, name in enumerate(LONGEST_FIRST)}
        items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


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
