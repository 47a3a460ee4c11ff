"""Files for a training that is only timed: a model of true shape with random weights, and prompts of one length.

python -m benchmarks.train_files FOLDER MODEL DEVICE [LAYERS] writes FOLDER. It is a process of its own: the trainer is
to find the device empty.
"""

import json
import random
import string
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.models import Model, get_model

WHOLE = "whole"  # written last
SHARD = 4 << 30  # bytes of one file of weights
SPECIAL = ("<|endoftext|>", "<|im_end|>", "<|im_start|>")  # verl looks for the second; config.json: 0 begins, 1 ends
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def write_model(model: Model, folder: Path, device: str) -> None:
    """Write a checkpoint as the hub has them: weights, config and tokenizer."""
    import torch
    from safetensors.torch import save_file

    from ascend_quant.schemes.tensors import buckets
    from benchmarks.tensors import Weights

    folder.mkdir(parents=True, exist_ok=True)
    model.write_config(folder)
    save_tokenizer(model.vocab, folder)
    shards = list(buckets(Weights(model, torch.device(device), seed=1).named(), SHARD))
    places = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({name: tensor.cpu().contiguous() for name, tensor in shard}, folder / file, metadata={"format": "pt"})
        places |= {name: file for name, _ in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / WHOLE).touch()


def save_tokenizer(size: int, folder: Path) -> None:
    """Save a tokenizer of a model's whole vocabulary, bytes and fillers up to `size`, so that verl masks none of it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    real = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: index for index, token in enumerate([*real, *(f"<{i}>" for i in range(len(real), size))])}
    backend = Tokenizer(models.BPE(vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[1],
        additional_special_tokens=[SPECIAL[2]],
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


def write_prompts(files: Sequence[Path], rows: int, tokens: int) -> None:
    """Write verl's data sets: each prompt of so many letters, which are tokens."""
    import pandas

    draw = random.Random(0)
    table = [
        {
            "data_source": "benchmark",
            "ability": "none",
            "prompt": [{"role": "user", "content": "".join(draw.choices(string.ascii_lowercase, k=tokens))}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index},
        }
        for index in range(rows)
    ]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        pandas.DataFrame(table).to_parquet(file)


if __name__ == "__main__":
    where, name, device, *layers = sys.argv[1:]
    write_model(get_model(name).cut(int(layers[0]) if layers else None), Path(where), device)
