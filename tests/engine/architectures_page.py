"""The table of docs/models.md and docs/models.zh.md, from the rows that tests run."""

from pathlib import Path

from architectures import ROWS, Row

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"en": DOCS / "models.md", "zh": DOCS / "models.zh.md"}
BEGIN, END = "<!-- rows: tests/engine/architectures.py -->\n", "<!-- end of rows -->\n"
HEADS = {
    "en": "| model | class | int8 | refit | stays in BF16, beside embeddings, `lm_head` and norms |",
    "zh": "| 模型 | 类 | int8 | refit | 除 embedding、`lm_head` 和归一化层之外保持 BF16 的部分 |",
}
WORDS = {
    "en": {
        **{"yes": "yes", "same": "same", "refused": "refused: {}", "mtp": "; MTP tensors are left out", "and": ", "},
        **{"image": ", images too", "lacks": "; stand-in: {}"},
    },
    "zh": {
        **{"yes": "是", "same": "一致", "refused": "拒绝：{}", "mtp": "；略去 MTP 张量", "and": "、"},
        **{"image": "，包括图像", "lacks": "；替代：{}"},
    },
}
IN_CHINESE = {" (text)": "（文本）", " with MTP layers": "（带 MTP 层）"}
NAMES = {
    ".gate.": ("router", "路由器"),
    ".shared_expert_gate.": ("gate of the shared expert", "共享专家的门"),
    ".conv.conv.": ("short convolution", "短卷积"),
    "visual.": ("vision tower", "视觉塔"),
    ".conv1d.": ("convolution of linear attention", "线性注意力中的卷积"),
}


def table(language: str) -> str:
    """Markdown; a row a line."""
    return "\n".join([HEADS[language], "|---|---|---|---|---|", *(_line(row, language) for row in ROWS)]) + "\n"


def with_table(text: str, language: str) -> str:
    """A page with its table anew."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n" + table(language) + "\n" + END + rest.partition(END)[2]


def _line(row: Row, language: str) -> str:
    words, which = WORDS[language], list(HEADS).index(language)
    name = row.name
    for english, chinese in IN_CHINESE.items() if which else ():
        name = name.replace(english, chinese)
    if row.refused:
        return f"| {name} | `{row.model}` | {words['refused'].format(row.why[which])} | | |"
    plain = words["and"].join(NAMES[part][which] for part in row.plain)
    served = words["yes"] + (words["lacks"].format(row.lacks[which]) if row.lacks[which] else "")
    same = words["same"] + (words["image"] if row.vision else "") + (words["mtp"] if row.left_out else "")
    return f"| {name} | `{row.model}` | {served} | {same} | {plain} |".replace("|  |", "| |")
