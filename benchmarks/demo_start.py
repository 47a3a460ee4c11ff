"""python -m benchmarks.demo_start OUT: a model of 0.3 M parameters that writes out running totals, for long answers.

The GPU demo's task (launch/demo/tasks.py) in the CPU demo's size: first short columns, then up to sixteen lines, 112
tokens. It imitates the careless teacher, so its carries are as uncertain as a policy's choices. Minutes on one core.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from launch.demo.model import TINY, build_model, save_tokenizer
from launch.demo.recipe import WarmUp
from launch.demo.tasks import Ledger
from launch.demo.warmup import encode, imitate_teacher, sampled_accuracy

POSITIONS = 2048
STAGES = {  # lines of an answer, and how they are learnt
    (2, 8): WarmUp(1500, fall=50, batch=64, learning_rate=2e-3, ramp=50, band=(0, 1), seconds=3600),
    (4, 16): WarmUp(200, fall=50, batch=32, learning_rate=1e-3, ramp=50, band=(0, 1), seconds=3600),
}
EXAM = 64  # problems


def main(out: Annotated[Path, typer.Argument(help="The checkpoint's folder.")]) -> None:
    """Train and save the model."""
    torch.set_num_threads(1)  # these matrices are too small to share out
    model = build_model("qwen2", 0, TINY | {"max_position_embeddings": POSITIONS}, Ledger().alphabet)
    for lines, plan in STAGES.items():
        task = Ledger(*lines)
        exam = encode([(one.prompt, one.answer) for one in task.exam()[:EXAM]], task)
        imitate_teacher(model, task, plan, 0, exam, lambda done: None)
        print(f"{lines[0]} to {lines[1]} lines: {sampled_accuracy(model, exam):.2f} right when sampled")
    model.to(torch.bfloat16).save_pretrained(out)
    save_tokenizer(out, task.alphabet)


if __name__ == "__main__":
    typer.run(main)
