"""Run an engine on RANKS ranks in processes of their own and dump what each rank holds: tp_dump.py OUT FOLDER ..

Not a test: test_parallel.py starts it, because an engine of several ranks wants a main process of its own.
"""

import os
import sys
from pathlib import Path

import torch


def dump(worker):
    from engines import as_bytes

    parameters = worker.model_runner.model.named_parameters()
    return {name: as_bytes(parameter.detach().clone()) for name, parameter in parameters}


def push(worker, path: str, scheme: str):
    """Refits in buckets, from the worker's own process as verl's extension does it."""
    from engines import buckets
    from models import as_codes, checkpoint, stacked

    from ascend_quant.integrations.vllm import refit_of
    from ascend_quant.transfer.prequantized import SCHEMES_SENT

    model = worker.model_runner.model
    state = checkpoint(Path(path))
    at_start = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    ways, refit = {"one by one": state, "stacked": stacked(state)}, refit_of(model)
    receipts = {}

    def send(way, sent):
        with refit.session():
            for bucket in buckets(sent):
                model.load_weights(bucket)
        receipts[way] = refit.last_receipt

    for way, sent in ways.items():
        send(way, sent)
        if scheme in SCHEMES_SENT:
            own = refit.plan.takes_codes()[0]
            send(f"{way}, own as codes", as_codes(sent, scheme, own))
            codes = as_codes(sent, scheme, {*own, *(name for name in sent if ".experts." in name)})
            send(f"{way}, as codes", codes)
            send(f"{way}, as codes, by plan", codes)
    assert len({receipt.digest for receipt in receipts.values()}) == 1, receipts
    assert at_start == {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    return receipts["one by one"].tensors


def refuse(worker, path: str):
    """A tensor with twice the rows: each rank would quietly take its part of the first half."""
    from models import checkpoint

    name = "model.layers.1.self_attn.q_proj.weight"
    tensor = checkpoint(Path(path))[name]
    try:
        worker.model_runner.model.load_weights([(name, torch.cat([tensor, tensor]))])
    except Exception as error:
        return str(error)
    return "accepted"


def refuse_experts(worker, path: str):
    """Whole refits with one expert too many: its number, or its name, is nobody's."""
    from models import checkpoint

    from ascend_quant.integrations.vllm import refit_of

    state, said = checkpoint(Path(path)), []
    for known, sent in ((".5.down_proj", ".6.down_proj"), (".5.down_proj", ".5.down_prj"), (".1.up", ".01.up")):
        name = next(name for name in state if f"layers.1.mlp.experts{known}" in name)
        try:
            with refit_of(worker.model_runner.model).session():
                extra = (name.replace(known, sent), state[name])
                worker.model_runner.model.load_weights([*state.items(), extra])
            said.append("accepted")
        except Exception as error:
            said.append(str(error))
    with refit_of(worker.model_runner.model).session():
        worker.model_runner.model.load_weights(state.items())
    return said


def reload_on_the_first(worker, path: str):
    """As where a folder is on one host alone."""
    worker.model_runner.reload_weights(weights_path=path if worker.rank == 0 else f"{path}-elsewhere")


def write_on_the_second(worker, path: str):
    """Past the refit, one byte."""
    if worker.rank == 1:
        worker.model_runner.model.get_parameter("model.layers.1.self_attn.o_proj.weight").view(torch.uint8)[-1, -1] ^= 1


def on_one_rank(llm, path: str, call):
    """What is said of what one rank alone has done, of a request after it, and whether the next sync heals."""
    said = []
    for step in (
        lambda: llm.collective_rpc(call, args=(path,)),
        lambda: llm.generate([{"prompt_token_ids": [3, 4, 5]}], use_tqdm=False)[0].outputs[0].stop_reason,
    ):
        try:
            said.append(step())
        except Exception as error:
            said.append(str(error))
    llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
    return [*said, llm.generate([{"prompt_token_ids": [3, 4, 5]}], use_tqdm=False)[0].outputs[0].finish_reason]


def main(out: str, folder: str, refit_from: str, ranks: int, expert_parallel: bool, scheme: str) -> None:
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_ALLOW_INSECURE_SERIALIZATION="1")
    from vllm import LLM

    llm = LLM(
        folder,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=64,
        max_num_seqs=8,
        quantization="ascend_quant",
        hf_overrides={"quantization_config": {"quant_method": "ascend_quant", "scheme": scheme}},
        tensor_parallel_size=ranks,
        enable_expert_parallel=expert_parallel,
        distributed_executor_backend="mp",
    )
    from engines import logprobs

    loaded = llm.collective_rpc(dump)
    tensors = llm.collective_rpc(push, args=(refit_from, scheme))
    result = {
        "loaded": loaded,
        "tensors": tensors,
        "refitted": llm.collective_rpc(dump),
        "logprobs": logprobs(llm),
        "one rank": on_one_rank(llm, refit_from, reload_on_the_first),
        "private write": on_one_rank(llm, refit_from, write_on_the_second),
        "experts": llm.collective_rpc(refuse_experts, args=(refit_from,)) if expert_parallel else None,
        "refused": llm.collective_rpc(refuse, args=(refit_from,)),
    }
    torch.save(result, out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "ep", sys.argv[6])
