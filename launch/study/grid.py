"""What a study trains: arms, learning rates and seeds, on a CPU or on a GPU."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any

from launch.demo import recipe, run
from launch.demo.model import TINY
from launch.demo.recipe import Choices, Setup, WarmUp, load_recipe
from launch.demo.run import OptionError, listed, one_of
from launch.demo.tasks import Ledger
from launch.numbers import whole

RATE = "actor_rollout_ref.actor.optim.lr"


ARMS = ("bf16", "int8", "int8-uncorrected", "int8-qat", "fp8")  # of the demo
REFERENCE = "bf16"
RATES = ("1e-4", "1e-5", "1e-6", "5e-8")
SEEDS = (0, 1)

# One core learns it in two minutes; what the last updates change least is how uncertain the carries are.
SMALL = Setup(
    stack="cpu",
    recipe="study",
    task=Ledger(8, 10, slips=0.2),
    models=("qwen2",),
    shape=TINY | {"max_position_embeddings": 128},
    warm_up=WarmUp(2500, fall=200, batch=64, learning_rate=2e-3, ramp=50, band=(0.2, 0.6), seconds=1800),
    arms=ARMS,
    cores_to_start_early=inf,
)
SETUPS = {"cpu": SMALL, "cuda": replace(recipe.SETUPS["cuda"], arms=ARMS)}


@dataclass(frozen=True)
class Cell:
    """One training; `rate` is written as the user wrote it, and as verl will read it."""

    arm: str
    rate: str
    seed: int

    @property
    def name(self) -> str:
        return f"seed{self.seed}-lr{self.rate}-{self.arm}"


@dataclass(frozen=True)
class Grid:
    """All cells of a study, and what they have in common."""

    device: str
    arms: tuple[str, ...]
    rates: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int

    @property
    def setup(self) -> Setup:
        return SETUPS[self.device]

    def cells(self) -> list[Cell]:
        """Seed by seed and rate by rate, so that arms which are compared are trained one after another."""
        return [Cell(arm, rate, seed) for seed, rate, arm in product(self.seeds, self.rates, self.arms)]

    def choices(self, cell: Cell) -> Choices:
        """What the demo's training is told of a cell."""
        return Choices((cell.arm,), self.steps, "token", cell.seed, "qwen2", self.device, own_setup=self.setup)


def grid(device: str, arms: str | None, rates: str | None, seeds: str | None, steps: int | None) -> Grid:
    """The checked options, each a list with commas; what is not given is all there is.

    Raises:
        OptionError: one cannot be; the message is a line for the user.
    """
    one_of("--device", device, tuple(SETUPS))
    names = ARMS if arms is None else listed("--arms", arms, "an arm", ARMS)
    wanted = RATES if rates is None else listed("--rates", rates, "a rate")
    for rate in wanted:
        if not is_rate(rate):
            raise OptionError(f"--rates {rate!r}: a learning rate is a number above 0 and below 1, as 1e-6")
    each_once("--rates", wanted, float, "a rate")
    numbers = tuple(map(str, SEEDS)) if seeds is None else listed("--seeds", seeds, "a seed")
    for number in numbers:
        if (seed := whole(number)) is None or seed > run.LAST_SEED:
            raise OptionError(f"--seeds {number!r:.80}: a seed is a whole number from 0 to {run.LAST_SEED}")
    each_once("--seeds", numbers, int, "a seed")
    count = load_recipe(SETUPS[device].recipe)["steps"] if steps is None else steps
    if count < 2:
        raise OptionError(f"--steps {count}: at least 2 are needed: the first refit has no update to compare with")
    return Grid(device, names, wanted, tuple(map(int, numbers)), count)


def on_device(wanted: Grid, asked: bool) -> tuple[Grid, str | None]:
    """The grid that this machine can run, and a line about the arms that it cannot, see `launch.demo.run.on_device`."""
    whole = replace(wanted.choices(wanted.cells()[0]), arms=wanted.arms)
    able, left_out = run.on_device(whole, asked)
    return replace(wanted, arms=able.arms), left_out


def is_rate(text: str) -> bool:
    """Whether it is a number above 0 and below 1, in plain digits: float() takes more."""
    try:
        return text.isascii() and "_" not in text and 0 < float(text) < 1
    except ValueError:
        return False


def each_once(option: str, texts: Sequence[str], number: Callable[[str], float], what: str) -> None:
    """Raise OptionError if two of the texts are one number, however they are written."""
    if len({number(text) for text in texts}) < len(texts):
        raise OptionError(f"{option} {','.join(texts)!r}: names {what} twice; give each at most once")


def settings(cell: Cell) -> dict[str, Any]:
    """The keys of verl that make a cell of the demo's training."""
    return {RATE: float(cell.rate)}


def ordered(names: Iterable[str]) -> list[str]:
    """Arms in the order of the table."""
    return sorted(names, key=ARMS.index)
