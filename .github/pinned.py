#!/usr/bin/env python3
"""pinned.py OUTPUT: the targets that can be built, of `images list --json` on stdin, as a matrix's list for GitHub.

The others get a notice each: their bases have no digest, or their packages no lock, and a build would only say so.
"""

import json
import sys


def lacks(row: dict) -> list[str]:
    """What a target must have, and has not."""
    lacking = [] if row["digest"] else [f"a digest of {row['base']}"]
    return lacking + ([] if row["locks"] else ["a lock of its packages"])


def main() -> None:
    rows = json.load(sys.stdin)
    for row in rows:
        if lacking := lacks(row):
            fix = f"./run.sh images lock {row['stack']}, where registry and index are reached"
            print(f"::notice title={row['target']} is not built::it lacks {' and '.join(lacking)}: {fix}")
    pinned = [row["target"] for row in rows if not lacks(row)]
    with open(sys.argv[1], "a") as output:
        output.write(f"pinned={json.dumps(pinned)}\n")


if __name__ == "__main__":
    main()
