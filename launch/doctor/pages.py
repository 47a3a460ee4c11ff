"""docs/doctor.md and docs/doctor.zh.md, from the checks' own texts: `python -m launch.doctor.pages` writes them."""

from functools import reduce

from launch.doctor.checking import Check
from launch.doctor.checks.hosts import TOGETHER
from launch.doctor.examination import CHECKS
from launch.root import ROOT

FOLDER = ROOT / "docs"
FILES = {"en": FOLDER / "doctor.md", "zh": FOLDER / "doctor.zh.md"}
COMMANDS = """```
./run.sh doctor                                               # this machine
./run.sh doctor --recipe qwen2.5-7b-int8-gsm8k-a2             # and whether it has what the recipe needs
./run.sh doctor --recipe qwen2.5-7b-int8-gsm8k-a2 --mismatch report.json    # with what was measured of its model
./run.sh doctor --cluster my-cluster.yaml --json              # every host of an inventory, for programs
```"""
CHINESE = {  # of its comments
    "this machine": "本机",
    "and whether it has what the recipe needs": "再看是否具备 recipe（训练配方）所需的一切",
    "with what was measured of its model": "使用对其模型的实测结果",
    "every host of an inventory, for programs": "机器清单（inventory）中的每台主机，供程序读取",
}
HEAD = {
    "en": f"""# Doctor: a look at the hosts before a run

[中文](doctor.zh.md)

{COMMANDS}
The doctor looks and changes nothing. Each finding is `ok`, a `warning` (a run would start, and may be slow or fail
later) or an `error` (a run would fail), with the value that was found and what to do. Exit status: 0; 1 if there is an
error; 2 for wrong use. With `--cluster` every host looks at itself over ssh, at the same time as the others; then the
hosts are compared, and each tries to reach each.

What it knows of `npu-smi` and `hccn_tool` is from their public documents and from what users have posted: it has not
been run on an NPU yet. This page is made from the texts of the checks (`python -m launch.doctor.pages`).
""",
    "zh": f"""# Doctor：启动前检查各台主机

[English](doctor.md)

{reduce(lambda text, pair: text.replace(*pair), CHINESE.items(), COMMANDS)}
doctor 只检查，不做任何修改。每条结果是 `ok`、`warning`（任务能启动，但可能变慢或之后失败）或 `error`（任务会失败），
并给出实际的值和处理办法。退出码：0（没有 error）；1（有 error）；2（用法错误）。使用 `--cluster` 时各主机
通过 ssh 同时自查，随后互相比较，并两两尝试连接。

对 `npu-smi` 与 `hccn_tool` 输出的了解来自公开文档和用户贴出的内容：尚未在 NPU 上运行过。
本页由各检查的文字生成（`python -m launch.doctor.pages`）。
""",
}
COLUMNS = {
    "en": "| check | looks at | what it means | fix |\n|---|---|---|---|",
    "zh": "| 检查 | 内容 | 含义 | 处理 |\n|---|---|---|---|",
}
SUBJECTS = {
    "facts": ("What could be looked at", "信息收集"),
    "devices": ("Devices", "设备"),
    "versions": ("Versions", "版本"),
    "kernels": ("Kernels", "kernel 与算子"),
    "correction": ("Importance weights of the recipe", "recipe 的重要性权重"),
    "network": ("Network of the host", "主机网络"),
    "links": ("Network of the devices", "设备网络"),
    "variables": ("Environment variables", "环境变量"),
    "paths": ("Files of the run", "任务文件"),
    "system": ("The machine", "主机"),
    "ray": ("Ray", "Ray"),
    "leftovers": ("Leftovers", "残留"),
    "hosts": ("Hosts beside each other", "主机之间"),
}


def page(language: str) -> str:
    """The whole page in `en` or `zh`."""
    parts = [HEAD[language]]
    for subject, titles in SUBJECTS.items():
        rows = [_row(check, language) for check in (*CHECKS, *TOGETHER) if check.name.startswith(f"{subject}.")]
        parts.append("\n".join([f"## {titles[language == 'zh']}", COLUMNS[language], *rows, ""]))
    return "\n".join(parts)


def _row(check: Check, language: str) -> str:
    texts = (getattr(text, language) for text in (check.looks_at, check.means, check.fix))
    return f"| `{check.name}` | {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


if __name__ == "__main__":
    for language, file in FILES.items():
        file.write_text(page(language))
