"""One rank of an engine: python one_rank.py RANK RANKS tp|ep ARCHITECTURE FOLDER, with tests/ in PYTHONPATH."""

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
    from npu_host import vllm_engine as engine
    from npu_host import whole_model

    rank, ranks, way, architecture, folder = sys.argv[1:]
    whole_model.save_share(engine.running, int(rank), int(ranks), way, architecture, Path(folder))
