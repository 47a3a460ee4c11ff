"""Makes torch_npu 2.7.1 importable and puts npu:0 on host memory, before any test module imports torch."""

from importlib.util import find_spec
from pathlib import Path


def is_there() -> bool:
    """Whether this environment has the packages, and vllm-ascend is the old one."""
    package = find_spec("vllm_ascend")
    return bool(
        package and find_spec("vllm") and (Path(package.origin).parent / "quantization/quant_config.py").exists()
    )


if not is_there():
    collect_ignore_glob = ["test_*.py"]  # another stack's environment: nothing here can run
else:
    from npu_host import stubs

    stubs.start()

    import torch_npu  # noqa: F401

    from npu_host_0_10 import host

    host.install()
