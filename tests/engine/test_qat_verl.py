"""verl's own actor, on CPU: its model computes with fake-quantized weights, and sends its own to the rollout.

In a process of its own: verl's workers join a process group and change the process's settings.
"""

import pickle
import subprocess
import sys
from inspect import getclosurevars

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")
pytest.importorskip("vllm", reason="verl's workers need vLLM")

SCRIPT = """
import copy, os, sys, tempfile
os.environ |= {"VERL_PLATFORM": "cpu", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
import torch, transformers, verl
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/rendezvous", rank=0, world_size=1)
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
from verl.trainer.config import CheckpointConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from ascend_quant import oracle
from ascend_quant.integrations.verl.training.qat import FakeQuantization
from ascend_quant.integrations.verl.training.qat_worker import fake_quantizing
from ascend_quant.integrations.verl.sending.options import SendOptions
from ascend_quant.integrations.verl.sending.sender import SendingTrainingWorker, sends_weights
from ascend_quant.transfer.checksums import SENT
from ascend_quant.qat import without_fake_quantization
from ascend_quant.schemes import get_scheme

folder, SCHEME = sys.argv[1], "int4_g32"
sizes = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, head_dim=32, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2,
             mlp_only_layers=[0], tie_word_embeddings=False)
torch.manual_seed(0)
model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes))
model.save_pretrained(folder)

def worker(kind):
    config = TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(path=folder, load_tokenizer=False, use_remove_padding=False,
                                   override_config={"attn_implementation": "sdpa"}),
        engine_config=FSDPEngineConfig(strategy="fsdp2", use_torch_compile=False, forward_only=False,
                                       mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32"}),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )
    made = kind(config=config)
    made.reset()
    return made

wanted = FakeQuantization(SCHEME, ("re:.*self_attn.*",))
qat = fake_quantizing(sends_weights(ActorRolloutRefWorker, SendOptions()), wanted)
assert qat.ref_worker_cls is TrainingWorker
actor = worker(qat.actor_worker_cls)
assert isinstance(actor, SendingTrainingWorker)

reference = copy.deepcopy(model)
for name, w in reference.named_parameters():
    if ".mlp." in name and ".gate." not in name:
        values = oracle.dequantize(*oracle.quantize(w.data, get_scheme(SCHEME)))
        w.data.copy_(values.bfloat16())

ids = torch.arange(12).view(1, 12)
module = actor.engine.module.train()
logits = module(ids, use_cache=False).logits
expected = reference.train()(ids, use_cache=False).logits
assert torch.equal(logits, expected), (logits - expected).abs().max()
with without_fake_quantization(module):
    assert torch.equal(module(ids, use_cache=False).logits, model(ids, use_cache=False).logits)

def sent():
    weights, _ = actor.engine.get_per_tensor_param()
    return {name: w.clone() for name, w in weights if name != SENT}

before = sent()
plain = worker(TrainingWorker).engine
names = [name for name, _ in plain.get_per_tensor_param()[0]]
assert list(before) == names and any("experts.3.down_proj" in name for name in names)
assert torch.equal(before["model.layers.0.mlp.up_proj.weight"], model.model.layers[0].mlp.up_proj.weight)

logits.square().mean().backward()
expected.square().mean().backward()
for name, w in reference.named_parameters():
    found = dict(module.named_parameters())[name].grad
    found = found.full_tensor() if hasattr(found, "full_tensor") else found
    assert torch.equal(found, w.grad), name
actor.engine.optimizer.step()
after = sent()
assert [one.rpartition("layers.")[2] for one in actor.unquantized.names] == [
    f"{i}.self_attn.{one}_proj" for i in range(2) for one in ("o", "qkv")
], actor.unquantized
assert all(after[name].dtype == before[name].dtype for name in names)
assert not torch.equal(after["model.layers.0.mlp.up_proj.weight"], before["model.layers.0.mlp.up_proj.weight"])
print("done")
"""


def test_verls_actor_with_fake_quantized_layers(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0 and run.stdout.endswith("done\n"), run.stdout + run.stderr
    assert "the actor: 4 layers are fake-quantized to int4_g32; not quantized: model.layers.0.self_attn" in run.stderr


class Trainer:
    """As much of verl's trainer as says who plays which role."""

    def _init_resource_pool_mgr(self):
        import ray
        from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

        kinds = {"actor": ActorRolloutRefWorker, "critic": TrainingWorker}
        self.role_worker_mapping = {role: ray.remote(kind) for role, kind in kinds.items()}


def test_the_actors_class_reaches_other_processes():
    from ray import cloudpickle
    from verl.workers.engine_workers import TrainingWorker

    from ascend_quant.integrations.verl.compat import plain_class
    from ascend_quant.integrations.verl.training.qat import FakeQuantization
    from ascend_quant.integrations.verl.training.qat_worker import with_fake_quantization

    wanted = FakeQuantization("int4_g32", ("a",))
    trainer = with_fake_quantization(Trainer, wanted)()
    trainer._init_resource_pool_mgr()
    workers = {role: plain_class(kind) for role, kind in trainer.role_worker_mapping.items()}
    assert workers["critic"] is TrainingWorker
    actor = pickle.loads(cloudpickle.dumps(workers["actor"]))
    assert getclosurevars(actor.actor_worker_cls).nonlocals["wanted"] == wanted
    assert actor.ref_worker_cls is TrainingWorker
