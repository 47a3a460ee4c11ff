"""What goes through a model in one step, the parts of its time, and the operator that most of them are: a product."""

from dataclasses import dataclass

from ascend_quant.advise.layers import BF16, CODE, FLOAT32, Matrix
from ascend_quant.advise.roofline import STREAM, Operator

MATRICES, EXPERTS, LM_HEAD, ATTENTION = "quantizable matrices", "experts", "lm head", "attention, KV cache"
QUANTIZATION, OTHER, DRAW = "activation quantization", "norms, activations, router", "sampling"
DEVICES, HOST = "between devices", "host"
PARTS = (MATRICES, EXPERTS, ATTENTION, LM_HEAD, QUANTIZATION, OTHER, DRAW, DEVICES, HOST)


@dataclass(frozen=True)
class Step:
    """What goes through the model at once, on one of the data-parallel groups.

    Attributes:
        rows: tokens.
        sequences: of which they are the newest, and whose successors are sampled.
        context: tokens of a sequence, with these.
    """

    rows: float
    sequences: float
    context: float

    @property
    def prompts(self) -> bool:
        """Whole prompts, where decoding has one row a sequence."""
        return self.rows > self.sequences

    def attended(self, window: int | None) -> float:
        """Tokens that a row attends to, in the mean; causal attention sees half of a prompt."""
        n, w = self.context, self.context if window is None else min(window, self.context)
        return w * (n - (w - 1) / 2) / n if self.prompts else w

    def read(self, window: int | None) -> float:
        """Tokens of the cache that are read; those of a prompt once."""
        return self.rows if self.prompts else self.rows * self.attended(window)


def decode(sequences: float, context: float) -> Step:
    """One token for each of the sequences, which hold `context` tokens in the mean."""
    return Step(sequences, sequences, context)


def prefill(rows: float, prompt: int) -> Step:
    """`rows` tokens of whole prompts of that length."""
    return Step(rows, rows / prompt, prompt)


def product(
    part: str, scheme: str, rows: float, matrix: Matrix, copies: float = 1, efficiency: float = STREAM
) -> Operator:
    """x_MK @ w_NK.T for `copies` weights with `rows` rows each, in one kernel; BF16 comes out."""
    k, n = matrix
    item, scales = (BF16, 0) if scheme == "bf16" else (CODE, FLOAT32)
    weights = copies * (item * n * k + scales * n)
    moved = copies * rows * (item * k + scales + BF16 * n)
    operations = copies * 2 * rows * n * k
    return Operator(part, weights, 0, moved, operations, scheme, efficiency=efficiency)
