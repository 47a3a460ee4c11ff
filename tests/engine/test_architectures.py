"""Each row of the table of models: served, to be compared with plain vLLM, or refused by name.

A row takes some 6 s; those that are not OFTEN, alike in what an engine does with them, run with MODELS=all.
"""

import os
import re
from pathlib import Path

import pytest
import torch
from architectures import CONV, PREFILL, ROUTER, ROWS, is_quantized, is_transposed, make
from engines import addresses, apart, differing, engine, prompts, refit, resident, send
from models import checkpoint, save
from naming import has_line_naming
from seeing import LIMITS, prompt_with_image, with_images
from stand_ins import attend_to_latents, leave_short_convolutions, route_by_sigmoid
from vllm import SamplingParams
from vllm.model_executor.models import registry

from ascend_quant import oracle
from ascend_quant.refit import RefitError
from ascend_quant.schemes import get_scheme

DOCS = Path(__file__).parents[2] / "docs"
SERVED, REFUSED = [row for row in ROWS if not row.refused], [row for row in ROWS if row.refused]
OFTEN = (
    *("Gemma 3 (text)", "Phi-3", "GLM-4.5 with MTP layers"),
    *("Qwen3.5", "Qwen3-VL-MoE", "DeepSeek-V3", "K-EXAONE"),
)
STAND_INS = {PREFILL: attend_to_latents, ROUTER: route_by_sigmoid, CONV: leave_short_convolutions}
SELDOM = pytest.mark.skipif(os.environ.get("MODELS") != "all", reason="by hand: MODELS=all")


def answers(row, llm) -> tuple[torch.Tensor, list]:
    """Log-probabilities of the tokens of four prompts, one of them with an image, and four tokens that follow each."""
    asked = prompts(4, 24)
    if row.vision:
        asked[0] = prompt_with_image(row.vision["patch_size"])
    wanted = SamplingParams(max_tokens=4, temperature=0, prompt_logprobs=0, ignore_eos=True)
    found = llm.generate(asked, wanted, use_tqdm=False)
    numbers = [
        step[token].logprob
        for answer in found
        for token, step in zip(answer.prompt_token_ids, answer.prompt_logprobs, strict=True)
        if step is not None
    ]
    return torch.tensor(numbers, dtype=torch.float64), [list(answer.outputs[0].token_ids) for answer in found]


def decoding_gap(llm) -> float:
    """How far log-probabilities of decoded tokens are from those of the same tokens within a prompt.

    Latent attention multiplies prompts by its weights, and decodes with what is derived from them.
    """
    asked = prompts(4, 24)
    found = llm.generate(
        asked, SamplingParams(max_tokens=4, temperature=0, logprobs=0, ignore_eos=True), use_tqdm=False
    )
    decoded = [answer.outputs[0] for answer in found]
    wholes = [
        {"prompt_token_ids": [*prompt["prompt_token_ids"], *output.token_ids]}
        for prompt, output in zip(asked, decoded, strict=True)
    ]
    again = llm.generate(wholes, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0), use_tqdm=False)
    gaps = [
        abs(step[token].logprob - whole.prompt_logprobs[24 + i][token].logprob)
        for output, whole in zip(decoded, again, strict=True)
        for i, (token, step) in enumerate(zip(output.token_ids, output.logprobs, strict=True))
    ]
    return sum(gaps) / len(gaps)


def rounded(row, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What int8 makes of a checkpoint's weights, by the oracle, in their own dtype again."""
    int8, result = get_scheme("int8"), dict(state)
    for name, tensor in state.items():
        if is_quantized(row, name, tensor):
            rows = tensor.mT if is_transposed(row, name) else tensor
            codes, scale = oracle.quantize(rows.reshape(-1, rows.shape[-1]), int8)
            held = oracle.dequantize(codes, scale).to(tensor.dtype).reshape(rows.shape)
            result[name] = held.mT.contiguous() if is_transposed(row, name) else held
    return result


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """vLLM looks at each class in a process of its own, which would cost more than the rest of a row."""
    monkeypatch.setattr(registry, "_run_in_subprocess", lambda look: look())


@pytest.fixture(autouse=True)
def seeing():
    with with_images():
        yield


@pytest.fixture
def without_amx(request):
    """Where vLLM's own kernels for AMX do not compute the small model, or have not been seen to."""
    if not request.getfixturevalue("row").amx:
        request.getfixturevalue("no_amx")


@pytest.fixture
def stand_in(request, monkeypatch):
    """For what vLLM's CPU build lacks, in both engines."""
    if (lacking := request.getfixturevalue("row").lacks) in STAND_INS:
        STAND_INS[lacking](monkeypatch)


@pytest.mark.usefixtures("without_amx", "stand_in")
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=() if row.name in OFTEN else SELDOM) for row in SERVED]
)
def test_a_model_is_served_and_refitted(row, tmp_path):
    folder = make(row, tmp_path / "model")
    state = checkpoint(folder) | {name: torch.full((4, 6), 1.5, dtype=torch.bfloat16) for name in row.left_out}
    save(state, folder)
    options = {"max_num_seqs": 4, **(LIMITS if row.vision else {})}
    with engine(folder, quantization=None, hf_overrides={}, **options) as llm:
        plain, _ = answers(row, llm)
    with engine(folder, "bf16", **options) as llm:
        exact, _ = answers(row, llm)
        send(llm, rounded(row, state))
        effect = apart(answers(row, llm)[0], plain)
    with engine(folder, "int8", **options) as llm:
        fresh, at = resident(llm), addresses(llm)
        served, tokens = answers(row, llm)
        receipt = refit(llm).last_receipt
        codes = sum(tensor.numel() for tensor in fresh.values() if tensor.dtype == torch.int8)
        send(llm, {name: tensor.flip(-1) if tensor.dim() > 1 else tensor for name, tensor in state.items()})
        other = apart(answers(row, llm)[0], served)
        gap = decoding_gap(llm)
        changed = differing(fresh, resident(llm))
        send(llm, state)
        again, tokens_again = answers(row, llm)
        back = differing(fresh, resident(llm))
        digest = refit(llm).last_receipt.digest
        assert addresses(llm) == at
    d = apart(served, plain)
    print(f"FIGURES {row.name}: bf16 {apart(exact, plain):.5f} effect {effect:.4f} int8 {d:.4f}")
    print(f"FIGURES {row.name}: another checkpoint {other:.3f}, decoding beside prefill {gap:.4f}")
    assert apart(exact, plain) < (0.02 if row.plain else 0.01)  # other kernels for BF16; experts in another order
    assert codes == sum(tensor.numel() for name, tensor in state.items() if is_quantized(row, name, tensor))
    assert receipt.left_out.names == tuple(sorted(row.left_out))
    assert changed and other > 3 * d and gap < other / 5
    assert (back, digest, tokens_again) == ([], receipt.digest, tokens) and torch.equal(again, served)
    assert 0 < d < 3 * effect


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_a_model_that_cannot_be_served_is_refused_by_name(row, tmp_path):
    folder = make(row, tmp_path / "model")
    with pytest.raises(RefitError) as refused, engine(folder, "int8", max_num_seqs=4):
        pass
    assert has_line_naming(str(refused.value), *row.refused)


def test_the_rows_that_run_often_are_rows():
    assert set(OFTEN) <= {row.name for row in SERVED}


@pytest.mark.parametrize(("page", "refused"), [("models.md", "refused"), ("models.zh.md", "拒绝")])
def test_the_models_page_has_these_rows(page, refused):
    lines = re.findall(r"^\| [^|]+ \| `(\w+)` \| (.+?) \|", (DOCS / page).read_text(), re.MULTILINE)
    assert [(model, said.startswith(refused)) for model, said in lines] == [
        (row.model, bool(row.refused)) for row in ROWS
    ]
