"""One rank of an engine with an int8 KV cache: python c8_one_rank.py RANK RANKS FOLDER, with tests/ in PYTHONPATH."""

import sys
from pathlib import Path

from npu_host import stubs

stubs.start()

import torch  # noqa: E402

from npu_host import absent, device  # noqa: E402

device.install()
absent.stand_in(absent.LINEAR_ATTENTION)
torch.npu.config.allow_internal_format = True

if __name__ == "__main__":
    from npu_host import c8_models

    c8_models.save_share(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
