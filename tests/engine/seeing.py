"""Small models that see: the processor that is saved beside them, an image, and a way around torchvision.

The locks for CPUs have no torchvision. Where it is not installed, transformers has image processors that compute with
Pillow, and nothing that reads videos: here its processors are loaded without the part for videos.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock

import transformers
from models import with_tokenizer
from PIL import Image
from transformers import ProcessorMixin, Qwen2VLImageProcessor
from transformers.utils import is_torchvision_available
from vllm.model_executor.models import registry

MARKS = {"<|vision_end|>": 61, "<|vision_start|>": 62, "<|video_pad|>": 63, "<|image_pad|>": 64}
IDS = {"vision_end_token_id": 61, "vision_start_token_id": 62, "video_token_id": 63, "image_token_id": 64}
VOCAB = 67  # of the tokens that stand for parts of an image, and those of models.py
LIMITS = {"limit_mm_per_prompt": {"image": 1, "video": 0}, "max_num_batched_tokens": 2048}
FUNCTIONS = "transforms.v2.functional"
SCALE = "transformers.models.qwen2_vl.image_processing_qwen2_vl"  # vLLM's classes take from it how an image is scaled


@contextmanager
def with_images() -> Iterator[None]:
    """While it lasts, processors of images are saved and loaded, whether torchvision is installed or not."""
    if is_torchvision_available():
        yield
        return
    _import_scale()
    # vLLM looks at a class in a process of its own, unless ~/.cache has what an earlier one saw
    here = mock.patch.object(registry, "_run_in_subprocess", lambda look: look())
    # asked for sizes alone, of the longest video that there could be
    of_videos = property(lambda self: self.image_processor)
    with (
        here,
        mock.patch.object(ProcessorMixin, "get_attributes", classmethod(_of_images)),
        mock.patch.object(ProcessorMixin, "video_processor", of_videos, create=True),
    ):
        yield


def _import_scale() -> None:
    """Import the module that only says how an image is scaled, though it asks for torchvision."""
    names = ["torchvision", *(f"torchvision.{name}" for name in ("transforms", "transforms.v2", FUNCTIONS))]
    sys.modules.update({name: ModuleType(name) for name in names})
    sys.modules["torchvision.transforms.v2"].functional = sys.modules[f"torchvision.{FUNCTIONS}"]
    try:
        importlib.import_module(SCALE)
    finally:
        for name in names:
            del sys.modules[name]


def _of_images(kind: type, known=ProcessorMixin.get_attributes.__func__) -> list[str]:
    return [name for name in known(kind) if name != "video_processor"]


def save_processor(kind: str, patch: int, folder: Path) -> None:
    """With the tokenizer, for images of at most four parts of 2 x 2 patches."""
    side = 2 * patch
    images = Qwen2VLImageProcessor(patch_size=patch, min_pixels=side * side, max_pixels=4 * side * side)
    getattr(transformers, kind)(image_processor=images, tokenizer=with_tokenizer(folder, MARKS)).save_pretrained(folder)


def prompt_with_image(patch: int) -> dict:
    """Four parts of an image between words; its colours differ from part to part."""
    picture = Image.linear_gradient("L").resize((4 * patch, 4 * patch))
    image = Image.merge("RGB", [picture, picture.rotate(90), Image.new("L", picture.size, 90)])
    return {"prompt_token_ids": [62, 64, 61, 4, 5, 6, 7, 8], "multi_modal_data": {"image": image}}
