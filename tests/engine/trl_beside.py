"""In a process where TRL trains: the checkpoint of each weight sync, and what the engine held after it."""

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import engines
import torch
from gloo_wire import HOST, Group
from trl.generation import vllm_client

OUT = Path("beside.json")


def train(trainer) -> None:
    """Train; `step-N` becomes the checkpoint of sync N, and OUT `{"held": [..], "log": [..]}`."""
    generation, held = trainer.vllm_generation, []
    sync = generation.sync_weights

    def watched() -> None:
        merged(trainer.model).to(torch.bfloat16).save_pretrained(f"step-{len(held)}")
        sync()
        held.append(held_by(generation.llm) if generation.mode == "colocate" else None)

    generation.sync_weights = watched
    trainer.train()
    OUT.write_text(json.dumps({"held": held, "log": trainer.state.log_history}))


def spoil_and_train(trainer) -> None:
    """The first sync is refused: one of its elements is no number."""
    with torch.no_grad():
        trainer.model.model.norm.weight[0] = torch.nan
    train(trainer)


def merged(model: torch.nn.Module) -> torch.nn.Module:
    """A copy, with its adapter in the weights."""
    whole = copy.deepcopy(model)
    return whole.merge_and_unload() if hasattr(whole, "merge_and_unload") else whole


def held_by(llm) -> dict:
    return {"digest": engines.refit(llm).last_receipt.digest, "logprobs": engines.logprobs(llm).tolist()}


def over_gloo() -> None:
    """In server mode TRL refuses to send from a CPU, for its wire is NCCL: replace the two functions that touch it."""

    def init_communicator(self, device=0) -> None:
        port = self.group_port
        init = {"master_address": HOST, "master_port": port, "rank_offset": 1, "world_size": self.get_world_size() + 1}
        with ThreadPoolExecutor(1) as beside:
            url = f"{self.base_url}/init_weight_transfer_engine"
            joined = beside.submit(self._post, url, json={"init_info": init})
            self.communicator = Group(HOST, port, 0, init["world_size"])
            joined.result()

    def broadcast(iterator, group, src, post_iter_func) -> None:
        for item in iterator:
            group.broadcast(post_iter_func(item).contiguous(), src)

    vllm_client.VLLMClient.init_communicator = init_communicator
    vllm_client.packed_nccl_broadcast_producer = broadcast
