"""What the recipe's importance weights leave of a batch: assumed, and at the KL of a model that was measured.

`ascend-quant mismatch` measures it.
"""

from collections.abc import Iterator
from math import isfinite
from pathlib import Path

from ascend_quant.documents import BadDocument, read_json
from launch.doctor.checking import Said, check, ok, warning
from launch.doctor.facts import Facts
from launch.doctor.requirements import Wanted
from launch.errors import LaunchError
from launch.recipes.effective import KL
from launch.recipes.fields import Recipe


def kl_of(report: Path, recipe: Recipe) -> float:
    """The KL from the rollout's policy to the trainer's, nats a token, that a report holds.

    Args:
        report: what `ascend-quant mismatch .. --out REPORT` wrote, for the recipe's scheme.

    Raises:
        LaunchError: it is no such report, or of another scheme.
    """
    try:
        found = read_json(report)
    except BadDocument as error:
        raise LaunchError(f"--mismatch: {error}") from error
    figures = found.get("mismatch")
    kl = figures.get("k3_kl") if isinstance(figures, dict) else None
    if type(kl) is not float or not isfinite(kl) or kl < 0:
        raise LaunchError(f"--mismatch {report}: holds no KL (k3_kl): give what `ascend-quant mismatch --out` wrote")
    if found.get("scheme") != recipe.rollout.scheme:
        raise LaunchError(
            f"--mismatch {report}: is of {found.get('scheme')!s:.40}, and {recipe.name} rolls out in "
            f"{recipe.rollout.scheme}: measure that"
        )
    return kl


@check(
    "correction.share",
    looks_at=(
        "with `--recipe`: the recipe's importance weights (of tokens or of sequences), where they are cut, and its "
        "longest response; the share of a batch that they leave at a KL of 1e-4 a token, and with `--mismatch` at the "
        "KL of that report",
        "指定 `--recipe` 时：recipe 的重要性权重（token 级或序列级）、截断阈值与最长回答；每 token KL 为 1e-4 时，"
        "以及用 `--mismatch` 给出报告时在其实测 KL 下，一个 batch 还剩多少有效样本",
    ),
    means=(
        "below 0.8 the rest of the batch is generated for nothing, and the step is noisy; recipes that lose so much at "
        "1e-4 are refused, in these words, by whatever reads them",
        "低于 0.8 时，其余样本等于白白生成，每步的噪声也更大；"
        "在 1e-4 下就损失这么多的 recipe，任何读取它的命令都会以同样的文字拒绝",
    ),
    fix=(
        "weights of sequences: --set correction.level=token; of tokens: bring the two policies closer together (see "
        "long_answers.md)",
        "序列级权重：--set correction.level=token；token 级权重：缩小两个策略的差距（见 long_answers.zh.md）",
    ),
)
def share(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    weights = wanted.weights
    if weights is None or not wanted.head:
        return
    for kl, known in ((KL, "assumed"), (wanted.kl, "measured")):
        if kl is None:
            continue
        if loss := weights.loss(kl):
            what, fix = loss
            yield warning(f"{what} ({known})", fix)
        else:
            of = f"{weights.level}s, responses of {weights.tokens} tokens"
            yield ok(f"weights of {of}: {weights.share(kl):.3f} of a batch at a KL of {kl:.3g} a token ({known})")
