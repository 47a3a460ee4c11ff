"""One rank of an engine on host memory: python one_rank.py RANK RANKS tp|ep ARCHITECTURE FOLDER, tests/ in PYTHONPATH.

Builds the model, refits it twice in buckets, and saves what it holds as FOLDER/RANK.pt.
"""

import sys
from pathlib import Path

from npu_host import stubs

stubs.start()

import torch  # noqa: E402
import torch_npu  # noqa: E402, F401

from npu_host_0_10 import host  # noqa: E402

host.install()


def main(rank: int, ranks: int, way: str, architecture: str, folder: Path) -> None:
    """Save (codes, scales) by name, and whether addresses and digest are as they should be."""
    from ascend_quant.integrations import vllm as plugin
    from npu_host_0_10 import checkpoint, engine

    plugin.register()
    from vllm.model_executor.model_loader import base_loader

    from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig

    moe = "Moe" in architecture
    with engine.running(folder, architecture, rank, ranks, expert_parallel=way == "ep") as config:
        config.quant_config = NpuQuantConfig()
        model = base_loader.initialize_model(vllm_config=config, model_config=config.model_config)
        refit = plugin.refit_of(model)
        addresses = [parameter.data_ptr() for parameter in model.parameters()]
        for seed in range(2):  # through the loaders, then by plan
            pairs = [(name, tensor.npu()) for name, tensor in checkpoint.state_of(moe, seed).items()]
            with refit.session():
                for part in (pairs[10:], pairs[:4], pairs[4:10]):
                    model.load_weights(part)
        found = {
            "held": checkpoint.held(moe, model),
            "stayed": addresses == [parameter.data_ptr() for parameter in model.parameters()],
            "digests": (refit.last_receipt.digest, refit.digest()),
        }
        torch.save(found, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5]))
