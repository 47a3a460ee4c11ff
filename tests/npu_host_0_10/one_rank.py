"""One rank of an engine: python one_rank.py RANK RANKS tp|ep ARCHITECTURE FOLDER, with tests/ in PYTHONPATH."""

import sys
from pathlib import Path

from npu_host import stubs

stubs.start()

import torch_npu  # noqa: E402, F401

from npu_host_0_10 import host  # noqa: E402

host.install()

if __name__ == "__main__":
    from npu_host import whole_model

    from npu_host_0_10 import engine

    rank, ranks, way, architecture, folder = sys.argv[1:]
    whole_model.save_share(engine.running, int(rank), int(ranks), way, architecture, Path(folder))
