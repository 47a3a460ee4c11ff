"""`python -m launch.environment` writes docs/environment.md and docs/environment.zh.md from the table."""

from launch.environment import FAMILIES
from launch.environment.table import ALL, ASCEND, CPU, CUDA, TABLE, Variable
from launch.root import ROOT
from launch.variables import OF_THE_LAUNCHER, OTHER_CLUSTERS, SECRETS

DOCS = ROOT / "docs"
STACKS = {ALL: "all", ASCEND: "ascend", CPU: "cpu", CUDA: "cuda13"}
STACKS_CHINESE = STACKS | {ALL: "全部"}


def english() -> str:
    """docs/environment.md."""
    rows = [f"| `{row.name}` | `{row.value}` | {_stacks(row, STACKS)} | {row.why} |" for row in TABLE]
    return f"""# Environment variables

[中文](environment.zh.md). Made by `python -m launch.environment` from `launch/environment/table.py`: change it there.

`./run.sh train` sets these on every host. `./run.sh train RECIPE --cluster NAME --dry-run` shows what each host gets,
where each value comes from, and what it replaces. Values in braces are filled in on the host.

| variable | value | stacks | why |
|---|---|---|---|
{chr(10).join(rows)}

`ascend` is both ascend-cann8.5 and ascend-cann9.1.

## Your own values win
From the weakest to the strongest:
1. the table above,
2. the recipe,
3. `environment` of the inventory,
4. `environment` of a host in the inventory,
5. your shell.

Of your shell count the variables of the table, and those that begin with {_listed(FAMILIES)}. The latter are handed
on as they are: no launch sets `FLASHRL_*`, for one.

Over ssh, the shell is that of the control host, and what names a host's own address, NIC or devices
({_listed(_of_host())}) counts on that host alone: write it under the host in the inventory. With
`--on-this-node`, each node's own shell counts. What a host's login environment says (`~/.bashrc`) is below the table,
and a line says where the two differ.

Values of yours that put `HCCL_EXEC_TIMEOUT` at or above `HCCL_EVENT_TIMEOUT` are kept, and a line names both. verl's
`actor_rollout_ref.nccl_timeout` is no time-out of these runs: only its legacy workers read it, and recipes refuse it.

{_listed(OTHER_CLUSTERS)} would tie a process to another Ray cluster and do not count; in a recipe or an inventory they
are an error, and so are {_listed(OF_THE_LAUNCHER)}, which the launcher sets itself.

Values of variables whose names have a word that ends in
{_listed(SECRETS)}
or in the plural of one are shown as `***`, and so is the login in an address.
"""


def chinese() -> str:
    """docs/environment.zh.md."""
    rows = [f"| `{row.name}` | `{row.value}` | {_stacks(row, STACKS_CHINESE)} | {row.why_chinese} |" for row in TABLE]
    return f"""# 环境变量

[English](environment.md)。由 `python -m launch.environment` 根据 `launch/environment/table.py` 生成：请在那里修改。

`./run.sh train` 在每台主机上设置这些变量。`./run.sh train RECIPE --cluster NAME --dry-run` 显示每台主机的取值、来源以及
替换了什么。花括号中的值在主机上填入。

| 变量 | 值 | 软件栈 | 原因 |
|---|---|---|---|
{chr(10).join(rows)}

`ascend` 指 ascend-cann8.5 和 ascend-cann9.1。

## 以用户的值为准
优先级由低到高：
1. 上表，
2. recipe（训练配方），
3. 机器清单（inventory）的 `environment`，
4. inventory 中某台主机的 `environment`，
5. 用户的 shell。

shell 中计入的是上表的变量，以及以 {_listed(FAMILIES, "、")} 开头的变量。后者原样传递：例如启动器从不设置 `FLASHRL_*`。

通过 ssh 启动时，shell 指控制主机的 shell；指明某台主机自身地址、网卡或设备的变量（{_listed(_of_host(), "、")}）
只在该主机上有效：请写在 inventory 中该主机之下。使用 `--on-this-node` 时，以各节点自己的 shell 为准。主机登录环境
（`~/.bashrc`）中的值低于上表，两者不同时会有一行提示。

若你的取值使 `HCCL_EXEC_TIMEOUT` 不小于 `HCCL_EVENT_TIMEOUT`，取值保留，并有一行提示指出两者。verl 的
`actor_rollout_ref.nccl_timeout` 在这些任务中不起作用：只有它的旧 worker 读取，recipe 会拒绝它。

{_listed(OTHER_CLUSTERS, "、")} 会把进程连到别的 Ray 集群，因此不计入；写在 recipe 或 inventory 中
则报错，由启动器自行设置的 {_listed(OF_THE_LAUNCHER, "、")} 也一样。

名称中有以
{_listed(SECRETS, "、")}
（或其复数）结尾的词的变量显示为 `***`，网址中的登录信息也不显示。
"""


def _stacks(row: Variable, names: dict[tuple[str, ...], str]) -> str:
    """A row's stacks in a word, or one by one."""
    return names.get(row.stacks) or ", ".join(row.stacks)


def _of_host() -> list[str]:
    return [row.name for row in TABLE if row.of_host]


def _listed(names: list[str] | tuple[str, ...], mark: str = ", ") -> str:
    return mark.join(f"`{name}`" for name in names)


if __name__ == "__main__":
    (DOCS / "environment.md").write_text(english())
    (DOCS / "environment.zh.md").write_text(chinese())
