#!/usr/bin/env python3
"""pinned.py OUTPUT: the targets that can be built, of `images list --json` on stdin, as a matrix's list for GitHub.

The others get a notice each, with what is not pinned: a build would only say the same.
"""

import json
import sys


def main() -> None:
    rows = json.load(sys.stdin)
    for row in rows:
        if row["loose"]:
            fix = f"./run.sh images lock {row['stack']}, where registry and index are reached"
            print(f"::notice title={row['target']} is not built::{' and '.join(row['loose'])}: {fix}")
    pinned = [row["target"] for row in rows if not row["loose"]]
    with open(sys.argv[1], "a") as output:
        output.write(f"pinned={json.dumps(pinned)}\n")


if __name__ == "__main__":
    main()
