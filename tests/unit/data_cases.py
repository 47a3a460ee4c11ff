"""Small source files in the forms in which the data sets are published, and verl's own reading of the result."""

from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

GSM8K = [
    {"question": "Ann has 3 apples and buys 4. How many has she?", "answer": "She has 3+4=<<3+4=7>>7.\n#### 7"},
    {"question": "A farm sells 1200 eggs. At 1 dollar each?", "answer": "It gets 1200.\n#### 1,200"},
    {"question": "What is 3 less than -2?", "answer": "-2-3=-5\n#### -5"},
]


def math_row(problem: str, answer: Any, index: Any = "0f2a") -> dict[str, Any]:
    """A row of DAPO-Math-17k or of AIME-2024 in that form."""
    ask = "Solve this. The last line of your response is Answer: $Answer."
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": f"{ask}\n\n{problem}", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


def write_parquet(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file


def read(file: Path) -> list[dict[str, Any]]:
    return parquet.read_table(file).to_pylist()


def gsm8k_copy(folder: Path, train: list[dict[str, Any]] = GSM8K, test: list[dict[str, Any]] = GSM8K[:1]) -> Path:
    """As `hf download openai/gsm8k --repo-type dataset` leaves it, with the other configuration beside it."""
    for split, rows in (("train", train), ("test", test)):
        write_parquet(folder / "main" / f"{split}-00000-of-00001.parquet", rows)
        other = [{**row, "answer": f"How? ** {row['answer']}"} for row in rows]
        write_parquet(folder / "socratic" / f"{split}-00000-of-00001.parquet", other)
    return folder


def math_copy(folder: Path, train: list[dict[str, Any]], test: list[dict[str, Any]]) -> Path:
    """Both sets, each as the hub has it."""
    write_parquet(folder / "DAPO-Math-17k" / "data" / "dapo-math-17k.parquet", train)
    write_parquet(folder / "AIME-2024" / "data" / "aime-2024.parquet", test)
    return folder


def words_tokenizer() -> Any:
    """A tokenizer with a chat template; verl measures prompts with it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return tokenizer


def verl_rows(file: Path, cache: Path) -> list[dict[str, Any]]:
    """What verl's data set makes of a file."""
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    settings = {"max_prompt_length": 200, "filter_overlong_prompts": True, "filter_overlong_prompts_workers": 1}
    config = OmegaConf.create({**settings, "cache_dir": str(cache), "return_raw_chat": True})
    rows = RLHFDataset(str(file), words_tokenizer(), config)
    return [rows[index] for index in range(len(rows))]


def verl_score(row: dict[str, Any], response: str) -> float:
    """What verl's default reward gives for a response."""
    from verl.utils.reward_score import default_compute_score

    found = default_compute_score(row["data_source"], response, row["reward_model"]["ground_truth"], row["extra_info"])
    return found["score"] if isinstance(found, dict) else found
