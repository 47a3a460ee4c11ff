"""A model that sees: its language model is quantized, its tower keeps BF16, and a refit brings both up to date.

test_architectures.py has more models that see; test_towers.py has the same rules without an engine.
"""

import shutil

import pytest
import torch
from architectures import ROWS, make
from engines import differing, engine, logprobs, refit, resident, send
from models import checkpoint, perturbed, save
from seeing import LIMITS, prompt_with_image, with_images
from vllm import SamplingParams

pytestmark = pytest.mark.usefixtures("no_amx")  # until a machine with AMX has seen this
[ROW] = [row for row in ROWS if row.name == "Qwen2.5-VL"]


@pytest.fixture(autouse=True, scope="module")
def seeing():
    with with_images():
        yield


def of_image(llm) -> torch.Tensor:
    """Log-probabilities of what follows an image."""
    prompt = prompt_with_image(ROW.vision["patch_size"])
    wanted = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    [answer] = llm.generate([prompt], wanted, use_tqdm=False)
    return torch.tensor([next(iter(step.values())).logprob for step in answer.prompt_logprobs if step])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    first, later = (tmp_path_factory.mktemp("vision") / name for name in ("first", "later"))
    shutil.copytree(make(ROW, first), later)
    save(perturbed(checkpoint(first), 3), later)
    return first, later


@pytest.mark.parametrize("images", [1, 0])
def test_a_refit_leaves_tower_and_language_model_as_a_fresh_load_does(folders, images):
    first, later = folders
    options = {**LIMITS, "limit_mm_per_prompt": {"image": images, "video": 0}}
    state = checkpoint(later)
    tower = {name for name in state if ".visual." in name or name.startswith("visual.")}
    with engine(later, **options) as llm:
        held, receipt, answers = resident(llm), refit(llm).last_receipt, logprobs(llm)
        seen = of_image(llm) if images else None
    assert len(tower) == 30 and set(receipt.left_out.names) == (set() if images else tower)
    codes = {name for name, tensor in held.items() if tensor.dtype == torch.int8}
    assert len(codes) == 8 and all(name.startswith("language_model.") for name in codes)
    with engine(first, **options) as llm:
        assert not images or not torch.equal(of_image(llm), seen)
        for _ in range(2):  # through the loaders, by plan
            send(llm, state)
            assert refit(llm).last_receipt.digest == receipt.digest
            assert differing(held, resident(llm)) == []
            assert torch.equal(logprobs(llm), answers)
            assert not images or torch.equal(of_image(llm), seen)
