"""./run.sh bench sync: how long a weight sync under verl takes, by what is sent, beside verl's own in BF16.

Each arm is a training of a few short steps; verl times a sync after each (`timing_s/update_weights`): weights leave the
trainer, are written by the engine and proved. With --engines the engines have devices of their own, and what is sent
goes through verl's checkpoint engine (NCCL, HCCL). How far these devices are from the trainer's is the environment's:
with NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 two devices of one host speak through sockets, as hosts over Ethernet do.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console

from ascend_quant.recipes.keys import ROLLOUT, VLLM
from benchmarks import train_options
from benchmarks.report import Outcome, console, faults_of, show_faults, table_of, write_run
from benchmarks.tasks import check_layers, choices, in_turn
from benchmarks.train_run import FORCED, TIMED, Arm, carry_out
from launch.recipes import Paths, resolve

PLAIN = "plain"
SENDS = (PLAIN, "bf16", "int8", "delta")
SETTLED = 1  # steps whose syncs are left out: kernels are compiled, the plan is learnt, a delta has no base yet
NO_PLAIN = "vLLM's own BF16 gives up its weights on a CPU once they are packed, and verl's own main serves none apart"
OF_OUR_ENGINE = (
    f"{VLLM}.quantization=",
    f"{VLLM}.hf_overrides.quantization_config.",
    f"{ROLLOUT}.engine_kwargs.ascend_quant.",
)
CLUSTER = {  # of verl's own Ray, where no launcher has started one
    "ray_kwargs.ray_init.num_cpus": "16",  # that many processes, whatever cores there are
    "+ray_kwargs.ray_init.include_dashboard": "false",
    "+ray_kwargs.ray_init.object_store_memory": "1000000000",
}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Sync(Arm):
    """One training of the benchmark, by how weights are sent.

    Attributes:
        send: how the trainer sends what the engine holds, one of SENDS.
        engines: of the devices, that generate alone; 0 where all do both.
    """

    send: str = "bf16"
    engines: int = 0

    @property
    def trained_on(self) -> int:
        """Number of devices that do not only generate."""
        return self.gpus - self.engines

    def title(self) -> str:
        """Return the name for a line of progress."""
        return f"{self.shape}{' apart' if self.engines else ''}, {self.send}"

    @property
    def file_name(self) -> str:
        """Name of its log file."""
        return f"{self.shape}-{self.engines}-{self.send}"

    def settings(self) -> dict[str, object]:
        """Return the recipe's settings that are made before `changes`, as overrides of Hydra."""
        settings = super().settings()
        if self.send != PLAIN:
            settings["send"] = self.send
        if self.engines:
            settings |= {"placement": "apart", f"{ROLLOUT}.n_gpus_per_node": self.engines}
        return settings

    def command(self, model: Path, data: Path, out: Path) -> list[str]:
        """Return a user's command; of the plain arm, verl's own main with the same settings but those of our engine."""
        if self.send != PLAIN:
            return super().command(model, data, out)
        recipe = self.loaded()
        made = resolve(recipe, Paths(str(model), str(data), str(out)))
        overrides = [one for one in made if not one.lstrip("+").startswith(OF_OUR_ENGINE)]
        forced = FORCED | CLUSTER | {"trainer.total_training_steps": str(self.steps), "hydra.run.dir": str(out)}
        variables = recipe.environment | {"VERL_FILE_LOGGER_ROOT": f"{out}/metrics"}
        command = ["env", *(f"{name}={value}" for name, value in variables.items())]
        command += [sys.executable, "-m", "verl.trainer.main_ppo", *overrides]
        return [*command, *(f"{key}={value}" for key, value in forced.items()), *self.overrides]


@app.command()
def main(
    overrides: train_options.Overrides = None,
    recipe: train_options.Recipe = "",
    model: train_options.Model = "",
    layers: train_options.Layers = None,
    arms: Annotated[
        str,
        typer.Option(
            help="Comma-separated ways to send weights to INT8 engines: bf16, int8, delta (changed bytes); "
            "plain: verl's own BF16.  [default: all available ones]"
        ),
    ] = "",
    answer: Annotated[int, typer.Option(min=2, help="Tokens per answer.")] = 16,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 12,
    gpus: Annotated[int, typer.Option(min=1, help="Number of devices to use.")] = 2,
    engines: Annotated[int, typer.Option(min=0, help="Devices that only generate; 0: all train and generate.")] = 0,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Tensor-parallel size of an engine.")] = 1,
    steps: Annotated[int, typer.Option(min=SETTLED + 1, help="Steps per training; each is followed by a sync.")] = 5,
    changes: train_options.Changes = None,
    seconds: train_options.Seconds = 900,
    device: train_options.Device = "cuda",
    folder: Annotated[Path, typer.Option(help="Folder for models and logs.")] = Path("runs/bench-sync"),
    out: Annotated[Path | None, typer.Option(help="File for all steps; written after each training.")] = None,
) -> None:
    """Train a recipe a few short steps with random weights of its true shape, and time each weight sync.

    Exit status: 0; 1 if an arm fails, or a sync was not verified by checksums; 2 for wrong use.
    """
    choices("--device", device, tuple(train_options.RECIPE))
    if engines >= gpus:
        raise typer.BadParameter(f"{engines} of {gpus} devices leave none that trains", param_hint="--engines")
    with_plain = device == "cuda" and not engines
    every = ["bf16", "int8", *(["delta"] if engines else []), *([PLAIN] if with_plain else [])]
    sends = choices("--arms", arms or ",".join(every), SENDS)
    if PLAIN in sends and not with_plain:
        raise typer.BadParameter(f"no {PLAIN} here: {NO_PLAIN}", param_hint="--arms")
    shape = train_options.asked_for(recipe or train_options.RECIPE[device], model, device)
    check_layers(shape[1], layers)
    given = {"prompt": prompt, "answer": answer, "steps": steps, "gpus": gpus, "engines": engines, "device": device}
    given |= {"layers": layers, "tensor_parallel": tensor_parallel}
    given |= {"changes": tuple(changes or ()), "overrides": tuple(overrides or ())}
    tasks = [Sync(*shape, "bf16" if send == PLAIN else "int8", send=send, **given) for send in sends]
    folder = train_options.ready(tasks, folder)

    def write(outcomes: Sequence[Outcome]) -> None:
        if out is not None:
            write_run(out, "benchmarks.sync", device, {"rows": rows_of(outcomes)}, outcomes)

    def measure(task: Sync, limit: float) -> Outcome:
        outcome = carry_out(task, folder / "models", folder / "logs", limit)
        if outcome.result is not None:
            outcome.result["faults"] += not_verified(outcome)
        return outcome

    outcomes = in_turn(tasks, seconds, write, measure)
    show(outcomes, console())
    raise typer.Exit(bool(faults_of(outcomes)))


def not_verified(outcome: Outcome) -> list[str]:
    """List the syncs of ours that were not verified by checksums: one that is has every parameter, or fails."""
    steps = outcome.result["steps"] if outcome.task.send != PLAIN else ()
    found = [(line["step"], line["data"].get("refit/verified")) for line in steps]
    return [f"step {step}: refit/verified is {verified}" for step, verified in found if not verified]


def rows_of(outcomes: Sequence[Outcome]) -> list[dict]:
    """Return a row for each arm's settled syncs: seconds, medians of what verl logged, ratios to verl and BF16."""
    rows = []
    for outcome in outcomes:
        if syncs := [line["data"] for line in (outcome.result or {}).get("steps", ())[SETTLED:]]:
            names = sorted(
                {name for data in syncs for name in data if name.startswith("refit/") and name.count("/") == 1}
            )
            logged = {name: median(data[name] for data in syncs if name in data) for name in names}
            took = [data[TIMED] for data in syncs]
            row = {"model": outcome.task.shape, "send": outcome.task.send, "seconds": took, "median_s": median(took)}
            rows.append(row | {"logged": logged})
    known = {row["send"]: row["median_s"] for row in rows}
    return [
        row | {f"of_{base}": row["median_s"] / known[base] for base in (PLAIN, "bf16") if base in known} for row in rows
    ]


def show(outcomes: Sequence[Outcome], out: Console) -> None:
    """Print a table, one arm a line, and last what is wrong."""
    words = ("model", "sent")
    figures = ("syncs", "seconds", "low - high", f"of {PLAIN}", "of bf16", "MB sent", "codes changed", "verified")
    table = table_of("Weight syncs: medians", words, figures)
    for row in rows_of(outcomes):
        took, logged = row["seconds"], row["logged"]
        ratios = (f"{row[name]:.2f}" if name in row else "-" for name in (f"of_{PLAIN}", "of_bf16"))
        rest = ("-", "-", "-")
        if logged:
            sent, changed, verified = (logged.get(f"refit/{name}") for name in ("bytes_sent", "changed", "verified"))
            rest = f"{1e-6 * sent:.1f}", "-" if changed is None else f"{changed:.2%}", f"{verified:.0f}"
        spread = f"{min(took):.3f} - {max(took):.3f}"
        table.add_row(row["model"], row["send"], str(len(took)), f"{row['median_s']:.3f}", spread, *ratios, *rest)
    out.print(table)
    show_faults(faults_of(outcomes), out)


if __name__ == "__main__":
    app()
