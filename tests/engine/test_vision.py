"""A model that sees: its language model is quantized, its tower keeps BF16, and a refit brings both up to date.

vLLM's classes of such models need torchvision, which the locks for CPUs do not have: by hand, where it is installed.
test_towers.py has the same rules without an engine.
"""

from pathlib import Path

import pytest
import torch
from engines import differing, engine, logprobs, model_of, refit, resident
from models import COMMON, checkpoint, with_tokenizer

pytest.importorskip("torchvision")

from PIL import Image
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)
from vllm import SamplingParams

MARKS = {"<|vision_end|>": 55, "<|vision_start|>": 56, "<|video_pad|>": 57, "<|image_pad|>": 58}
IDS = {"vision_end_token_id": 55, "vision_start_token_id": 56, "video_token_id": 57, "image_token_id": 58}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
VISION = {
    **{"depth": 2, "hidden_size": 64, "num_heads": 2, "intermediate_size": 96, "out_hidden_size": 128},
    **{"patch_size": 14, "fullatt_block_indexes": [1], "window_size": 56},
}


def make(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    text = {**COMMON, "rope_parameters": ROPE}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=VISION, tie_word_embeddings=False, **IDS)
    model = Qwen2_5_VLForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.1) if name.endswith("bias") else parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer, pixels = with_tokenizer(folder, MARKS), {"min_pixels": 28 * 28, "max_pixels": 4 * 28 * 28}
    images, videos = Qwen2VLImageProcessor(**pixels), Qwen2VLVideoProcessor(**pixels)
    Qwen2_5_VLProcessor(image_processor=images, tokenizer=tokenizer, video_processor=videos).save_pretrained(folder)
    return folder


def of_image(llm) -> torch.Tensor:
    """Log-probabilities of what follows an image."""
    prompt = {
        "prompt_token_ids": [56, 58, 55, 4, 5, 6],
        "multi_modal_data": {"image": Image.new("RGB", (56, 56), (200, 30, 90))},
    }
    wanted = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    [answer] = llm.generate([prompt], wanted, use_tqdm=False)
    return torch.tensor([next(iter(step.values())).logprob for step in answer.prompt_logprobs if step])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return [make(tmp_path_factory.mktemp("vision"), seed) for seed in (0, 1)]


@pytest.mark.parametrize("images", [1, 0])
def test_a_refit_leaves_tower_and_language_model_as_a_fresh_load_does(folders, images):
    first, later = folders
    options = {"limit_mm_per_prompt": {"image": images, "video": 0}, "max_num_batched_tokens": 2048}
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
            with refit(llm).session():
                model_of(llm).load_weights(list(state.items()))
            assert refit(llm).last_receipt.digest == receipt.digest
            assert differing(held, resident(llm)) == []
            assert torch.equal(logprobs(llm), answers)
            assert not images or torch.equal(of_image(llm), seen)
