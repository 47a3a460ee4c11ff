"""Stand-ins for npu-smi and hccn_tool: programs on PATH that print what the real ones have printed to others.

Not hardware. The tables have the form of those that users posted: A2 in vllm-project/vllm-ascend issues with 910B3 and
driver 25.x, A3 in its issues 2534 and 6245, the column `Process id in container` of drivers 26 in nyakang/nyaterm
issue 268; `info -t board` is from the operator development guides of CANN (Ascend910B4, Ascend910_9392); hccn_tool's
lines are from MindCluster's fault diagnosis (hiascend.com, mindxdlFDUG021).
"""

import re
import textwrap
from pathlib import Path

A2_TABLE = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 102.8       45                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3445 / 65536         |
+===========================+===============+====================================================+
| 5     910B3               | Warning       | 100.8       44                0    / 0             |
| 0                         | 0000:02:00.0  | 12          0    / 0          60156/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
| 5       0                 | 2290156       | VLLMEngineCore           | 56630                   |
+===========================+===============+====================================================+
"""

A3_TABLE = """\
+------------------------------------------------------------------------------------------------------------------+
| npu-smi 26.0.rc2                            Version: 26.0.rc2                                                    |
+---------------------------+---------------+----------------------------------------------------------------------+
| NPU   Name                | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |
| Chip  Phy-ID              | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)           |
+===========================+===============+======================================================================+
| 0     Ascend910           | OK            | 162.6                34                      0    / 0                |
| 0     0                   | 0000:9D:00.0  | 0                    0    / 0                3419 / 65536            |
+------------------------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -                    34                      0    / 0                |
| 1     1                   | 0000:9F:00.0  | 0                    0    / 0                2874 / 65536            |
+===========================+===============+======================================================================+
| 7     Ascend910           | OK            | 172.0                53                      0    / 0                |
| 0     14                  | 0000:81:00.0  | 0                    0    / 0                15503/ 65536            |
+------------------------------------------------------------------------------------------------------------------+
| 7     Ascend910           | OK            | -                    52                      0    / 0                |
| 1     15                  | 0000:83:00.0  | 0                    0    / 0                15242/ 65536            |
+===========================+===============+======================================================================+
+---------------------------+---------------+----------------------------------------------------------------------+
| NPU     Chip              | Process id    | Process name       | Process memory(MB)    | Process id in container |
+===========================+===============+======================================================================+
| No running processes found in NPU 0                                                                              |
+===========================+===============+======================================================================+
| 7       0                 | 692318        | python3            | 12417                 | NA                      |
| 7       1                 | 692319        |                    | 12156                 | NA                      |
+===========================+===============+======================================================================+
"""

A2_BOARD = """\
        NPU ID                         : 0
        Chip ID                        : 0
        Chip Type                      : Ascend
        Chip Name                      : 910B3
        Software Version               : 25.5.0
"""

A3_BOARD = """\
        NPU ID                         : 0
        NPU Name                       : 9392
        Chip ID                        : 0
        Chip Name                      : Ascend910
        Software Version               : 25.5.0
"""


def one_card(number: int) -> str:
    """The table of a host, or a container, with this card alone: that of A2_TABLE's first one."""
    lines = A2_TABLE.splitlines(keepends=True)
    return "".join([*lines[:9], *lines[12:17]]).replace("| 0     910B3", f"| {number}     910B3")


def write_tool(file: Path, script: str) -> None:
    """An executable Bash script."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/usr/bin/env bash\n" + textwrap.dedent(script))
    file.chmod(0o755)


def write_npu_smi(folder: Path, table: str, board: str) -> None:
    """An npu-smi that knows `info` and, of the table's cards alone, `info -t board -i N`, with and without `-c 0`."""
    cards = "|".join(dict.fromkeys(re.findall(r"(?m)^\| (\d+) +(?:910B3|Ascend910) ", table)))
    (folder / "table.txt").write_text(table)
    (folder / "board.txt").write_text(board)
    write_tool(
        folder / "npu-smi",
        f"""\
        case "$*" in
        info) cat {folder}/table.txt ;;
        "info -t board -i "*)
            case "$5" in
            {cards}) cat {folder}/board.txt ;;
            *) echo "Error parameter of -i" >&2; exit 215 ;;
            esac ;;
        *) echo "Error parameter of $*" >&2; exit 1 ;;
        esac
        """,
    )


def write_hccn_tool(folder: Path) -> None:
    """An hccn_tool of four ports: 0 is well, 1 is down, 2 has no address, 3 is well."""
    write_tool(
        folder / "hccn_tool",
        """\
        case "$2 $3" in
        "1 -link") echo "link status: DOWN" ;;
        *" -link") echo "link status: UP" ;;
        "2 -ip") echo "Cmd os get ip failed, ret -1" >&2; exit 1 ;;
        *" -ip") printf 'ipaddr:192.0.2.1%s\\nnetmask:255.255.255.0\\n' "$2" ;;
        esac
        """,
    )
