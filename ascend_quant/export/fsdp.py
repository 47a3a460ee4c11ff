"""verl's FSDP checkpoints, one file per rank: the shards of all ranks are merged one tensor at a time.

A shard's pickle is loaded with torch's weights_only unpickler, which runs no code. verl's `model_merger` is not used:
it unpickles arbitrary objects, drops a tied head even if its values differ, and does not merge LoRA adapters.
"""

import logging
import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from ascend_quant.files.documents import read_json
from ascend_quant.profile.checkpoints import BadCheckpoint

CONFIG = "fsdp_config.json"
MESHES = "torch.distributed.device_mesh"  # warns that there is no process group


class Shards:
    """The files of all ranks, mapped into memory.

    Attributes:
        names: names of the tensors in the trained module.

    Raises:
        BadDocument: the number of ranks cannot be read.
        BadCheckpoint: it is not such a checkpoint, or a rank's file is missing, truncated, or has other tensors or
            objects.
    """

    def __init__(self, folder: Path):
        ranks = read_json(folder / CONFIG).get("world_size")
        if not isinstance(ranks, int) or ranks < 1:
            raise BadCheckpoint(f"{folder / CONFIG}: world_size is {ranks!r:.80}; it must be the number of ranks")
        self.folder = folder
        logging.getLogger(MESHES).setLevel(logging.ERROR)
        paths = [folder / f"model_world_size_{ranks}_rank_{rank}.pt" for rank in range(ranks)]
        self._ranks = [_read(path) for path in paths]
        self.names = list(self._ranks[0])
        for path, held in zip(paths, self._ranks, strict=True):
            if differing := sorted(held.keys() ^ self._ranks[0].keys()):
                raise BadCheckpoint(f"{path} and {paths[0].name} differ in {differing[0]}; copy the checkpoint again")

    def tensor(self, name: str) -> torch.Tensor:
        """Return a whole tensor, merged from all ranks, in the dtype in which it was trained.

        Raises:
            BadCheckpoint: there is no such tensor, its layout is not supported, or its parts do not form one tensor.
        """
        if name not in self._ranks[0]:
            raise BadCheckpoint(f"{self.folder} has no tensor {name}")
        parts = [held[name] for held in self._ranks]
        first = parts[0]
        if isinstance(first, DTensor):
            ranks, dim = self._layout(name, first)
            local = [parts[rank].to_local() for rank in ranks]
            whole = local[0] if dim is None else torch.cat(local, dim=dim)
        else:
            whole = first
            if not all(torch.equal(part, whole) for part in parts[1:]):
                raise BadCheckpoint(f"{self.folder}: {name} is not the same on all ranks; copy the checkpoint again")
        if whole.shape != first.shape:
            raise BadCheckpoint(
                f"{self.folder}: {name} has shape {tuple(first.shape)}, but its shards add up to {tuple(whole.shape)}"
            )
        return whole

    def _layout(self, name: str, tensor: DTensor) -> tuple[list[int], int | None]:
        """Return the ranks of one replica, in order, and the sharded dimension of a tensor (None if replicated)."""
        mesh, placements = tensor.device_mesh.mesh, tensor.placements
        cut = [at for at, placement in enumerate(placements) if not isinstance(placement, Replicate)]
        if len(cut) > 1 or any(type(placements[at]) is not Shard for at in cut) or mesh.max() >= len(self._ranks):
            found = f"{placements} on ranks {mesh.tolist()}"
            raise BadCheckpoint(
                f"{self.folder}: {name} has placements {found:.200}; only tensors sharded along one dimension are "
                "supported"
            )
        if not cut:
            return mesh.flatten()[:1].tolist(), None
        return mesh.movedim(cut[0], -1).reshape(-1, mesh.shape[cut[0]])[0].tolist(), placements[cut[0]].dim


def _read(shard: Path) -> Mapping[str, torch.Tensor]:
    """Read a rank's file; raise BadCheckpoint unless it contains only tensors."""
    try:
        return torch.load(shard, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        said = named[1] if named else " ".join(str(error).split())
        raise BadCheckpoint(
            f"{shard} contains more than tensors ({said:.200}); it was not loaded, and no code in it was run"
        ) from error
    except Exception as error:  # a truncated file can raise any exception
        raise BadCheckpoint(f"{shard} cannot be read ({error!r:.200}); copy the checkpoint again") from error
