"""python -m ascend_quant.smoke DEVICE FILE NAMES [START THEN]: a process of some probes, whose results go into a file.

The file is written after each probe, since a probe may end its process. `parts.py` starts it.
"""

import sys
from importlib import import_module
from pathlib import Path

import torch

from ascend_quant.files.whole_file import write_whole
from ascend_quant.smoke.probes import On, carry_out, probes_for
from ascend_quant.smoke.results import as_text, document


def main(device: str, file: str, names: str, *checkpoints: str) -> None:
    """Carry out probes, whose names are separated by commas."""
    if device == "npu":
        import_module("torch_npu").npu.config.allow_internal_format = True  # as vllm-ascend's worker, for FRACTAL_NZ
    on, results = On(torch.device(device), checkpoints=tuple(map(Path, checkpoints)) or None), []
    for one in probes_for(device, names.split(",")):
        results.append(carry_out(one, on))
        write_whole(Path(file), as_text(document(results, {})))


if __name__ == "__main__":
    main(*sys.argv[1:])
