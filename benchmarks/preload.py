"""What the processes of all tasks have imported before they are forked (process.py); nothing of it touches a GPU."""

import contextlib
import importlib

for name in ("torch", "triton", "vllm.entrypoints.llm", "vllm.v1.engine.core", "vllm.v1.worker.gpu_model_runner"):
    with contextlib.suppress(ImportError):  # part kernels does without vLLM, and CPUs without the rest
        importlib.import_module(name)
