"""verl's R3 with what an engine of ours returns: real Megatron-core routers on a CPU take the experts that it chose.

In a process of its own: verl replaces Megatron-core's routing for good.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("megatron.core", reason="its routers replay")
pytest.importorskip("verl", reason="it has them replay")

UNIT = Path(__file__).parents[1] / "unit"
SCRIPT = """
import os, sys
os.environ |= {"VERL_PLATFORM": "cpu"}
from pathlib import Path
import numpy as np
import torch
from megatron_ranks import EXPERTS, LENGTH, config_of, gpt, start

start(0, 1, Path(sys.argv[1]))
from megatron.core.transformer.moe.router import TopKRouter
from verl.utils.megatron import router_replay_utils as replay
from verl.utils.megatron.router_replay_patch import RouterReplayAction, apply_router_replay_patch

apply_router_replay_patch()
config = config_of(1, True)
config.moe_enable_routing_replay = config.enable_routing_replay = True
model = gpt(config).bfloat16().eval()
routers = [module for module in model.modules() if isinstance(module, TopKRouter)]
assert len(routers) == 2 and len(list(replay.iter_model_routers(model))) == 2
used = []
for router in routers:
    router.register_forward_hook(lambda _, __, out: used.append((out[1] != 0).view(LENGTH, EXPERTS)))

def run():
    used.clear()
    ids = torch.arange(LENGTH).view(1, -1)
    mask = torch.ones(1, 1, LENGTH, LENGTH).tril().logical_not()
    with torch.no_grad():
        return model(ids, ids, mask), torch.stack(used, dim=1)

logits, native = run()
# what vLLM returns: uint8 (tokens but the last, layers, experts a token)
routes = np.random.default_rng(0).permuted(np.tile(np.arange(EXPERTS, dtype=np.uint8), (LENGTH - 1, 2, 1)), axis=-1)
routes = torch.from_numpy(routes[..., : config.moe_router_topk].copy())
ids = torch.nested.as_nested_tensor([torch.arange(LENGTH)], layout=torch.jagged)
given = replay.align_r3_router_replay_data(torch.nested.as_nested_tensor([routes], layout=torch.jagged), ids)
replay.set_router_replay_data(given, None, config, model=model)
replay.set_model_router_replay_action(model, RouterReplayAction.REPLAY_FORWARD)
replayed_logits, replayed = run()
expected = torch.zeros(LENGTH - 1, 2, EXPERTS, dtype=torch.bool).scatter_(-1, routes.long(), True)
assert torch.equal(replayed[:-1], expected)
assert not torch.equal(native[:-1], expected) and not torch.equal(logits, replayed_logits)
print("done")
"""


def test_megatrons_routers_take_what_the_engine_returns(tmp_path):
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(UNIT)!r})\n{SCRIPT}", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0 and run.stdout.endswith("done\n"), run.stdout + run.stderr
