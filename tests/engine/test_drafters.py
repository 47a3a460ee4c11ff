"""Speculative decoding: the tokens are those of the quantized model, whatever drafts; a drafter keeps its dtype.

EAGLE heads and MTP layers share the embedding and the head with the model, and must follow its refits there. What
drafts without weights, or as a complete model, runs with MODELS=all.
"""

import logging
import os
from pathlib import Path

import pytest
import torch
from architectures import ROWS, make
from engines import engine, model_of, prompts, resident, send, worker_of
from models import COMMON, checkpoint, perturbed, save
from naming import has_line_naming, line_naming
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import SamplingParams

from ascend_quant.integrations.vllm import drafters, refit_of
from ascend_quant.refit import RefitError

pytestmark = pytest.mark.usefixtures("no_amx")  # until a machine with AMX has seen this
ROW = {row.name: row for row in ROWS}
WIDTH, TOKENS = COMMON["hidden_size"], {"num_speculative_tokens": 2}
SHARING = {"eagle": "EagleLlamaForCausalLM", "mtp": "Glm4MoeMTPModel"}
BY_HAND = pytest.mark.skipif(os.environ.get("MODELS") != "all", reason="by hand: MODELS=all")


def eagle_head(folder: Path) -> Path:
    """One layer of Llama without its first norm, and what joins the token with the model's hidden state."""
    torch.manual_seed(5)
    LlamaForCausalLM(LlamaConfig(**{**COMMON, "num_hidden_layers": 1})).bfloat16().save_pretrained(folder)
    layer = {name.removeprefix("model."): tensor for name, tensor in checkpoint(folder).items() if ".layers." in name}
    layer.pop("layers.0.input_layernorm.weight")
    save({**layer, "fc.weight": 0.05 * torch.randn(WIDTH, 2 * WIDTH).bfloat16()}, folder)
    return folder


def with_mtp_layer(folder: Path) -> None:
    """A layer for MTP behind GLM-4.5's last, with the copies of embedding and head that are published with it."""
    state, torch_seed = checkpoint(folder), torch.manual_seed(5)
    own = {
        name.replace("layers.1.", "layers.2."): tensor.clone() for name, tensor in state.items() if "layers.1." in name
    }
    joined = 0.05 * torch.randn(WIDTH, 2 * WIDTH, generator=torch_seed).bfloat16()
    shared = {"embed_tokens": state["model.embed_tokens.weight"], "shared_head.head": state["lm_head.weight"]}
    norms = dict.fromkeys(("enorm", "hnorm", "shared_head.norm"), torch.ones(WIDTH).bfloat16())
    more = {"eh_proj": joined, **shared, **norms}
    save(state | own | {f"model.layers.2.{name}.weight": tensor.clone() for name, tensor in more.items()}, folder)


def target(way: str, folder: Path) -> tuple[Path, dict]:
    """A checkpoint, and how vLLM is told to speculate."""
    if way == "mtp":
        with_mtp_layer(make(ROW["GLM-4.5 with MTP layers"], folder / "model"))
        return folder / "model", {"method": "mtp", "num_speculative_tokens": 1}
    llama = make(ROW["Llama"], folder / "model")
    if way == "ngram":
        return llama, {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1, **TOKENS}
    if way == "draft_model":
        return llama, {"method": way, "model": str(make(ROW["Llama"], folder / "draft")), **TOKENS}
    return llama, {"method": way, "model": str(eagle_head(folder / "draft")), **TOKENS}


def answers(llm) -> list[tuple[int, ...]]:
    wanted = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    return [tuple(answer.outputs[0].token_ids) for answer in llm.generate(prompts(4, 24), wanted, use_tqdm=False)]


def agree(a: list, b: list) -> bool:
    """But for one at most: products of other shapes round otherwise, and two tokens may be as likely."""
    return sum(x == y for x, y in zip(a, b, strict=True)) >= len(a) - 1


def drafter_of(llm) -> torch.nn.Module | None:
    return getattr(worker_of(llm).model_runner.drafter, "model", None)


def own_weights(llm) -> dict[str, torch.Tensor]:
    """What the drafter does not share with the model."""
    models = {parameter.data_ptr() for parameter in model_of(llm).parameters()}
    drafters = drafter_of(llm).named_parameters()
    return {name: tensor.detach().clone() for name, tensor in drafters if tensor.data_ptr() not in models}


@pytest.mark.parametrize(
    "way", ["eagle", "mtp", pytest.param("ngram", marks=BY_HAND), pytest.param("draft_model", marks=BY_HAND)]
)
def test_speculation_gives_the_quantized_models_tokens_across_refits(way, tmp_path, caplog):
    folder, speculation = target(way, tmp_path)
    state = checkpoint(folder)
    later = perturbed(state, 3)
    with engine(folder, max_num_seqs=4) as llm:
        expected, held = answers(llm), resident(llm)
        send(llm, later)
        expected_later = answers(llm)
    with (
        caplog.at_level(logging.INFO, "ascend_quant"),
        engine(folder, max_num_seqs=4, speculative_config=speculation) as llm,
    ):
        drafts = []
        if (drafter := drafter_of(llm)) is not None:
            drafter.register_forward_hook(lambda *call: drafts.append(call))
            before = own_weights(llm)
            assert before and not any(tensor.dtype == torch.int8 for tensor in drafter.state_dict().values())
        first = answers(llm)
        assert all(torch.equal(held[name], tensor) for name, tensor in resident(llm).items())
        send(llm, later)
        assert agree(answers(llm), expected_later)
        if way in SHARING:
            assert drafter.model.embed_tokens is model_of(llm).model.embed_tokens
            own_lines = [record.message for record in caplog.records if record.name == drafters.__name__]
            with pytest.raises(RefitError, match=line_naming(type(drafter).__name__, "mtp.enable_rollout")):
                refit_of(drafter)
            assert len(own_lines) == 1 and has_line_naming(own_lines[0], SHARING[way])
        if drafter is not None:
            assert drafts and all(torch.equal(before[name], tensor) for name, tensor in own_weights(llm).items())
        send(llm, state)
        assert answers(llm) == first
    assert agree(first, expected) and not agree(expected, expected_later)
