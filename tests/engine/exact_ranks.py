"""Sample on two tensor parallel ranks and save what came: exact_ranks.py OUT FOLDER

Not a test: test_exact_ranks.py starts it, because an engine of several ranks wants a main process of its own.
"""

import os
import sys
from pathlib import Path


def main(out: str, folder: str) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch
    from engines import engine
    from exact_cases import ENGINE, sample

    with engine(Path(folder), tensor_parallel_size=2, distributed_executor_backend="mp", **ENGINE) as llm:
        torch.save([tuple(sample(llm, temperature)) for temperature in (1.0, 0.8)], out)


if __name__ == "__main__":
    main(*sys.argv[1:])
