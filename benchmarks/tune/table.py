"""Writes the file of tuned choices, which ascend_quant/kernels/tuned.py reads."""

import json
from pathlib import Path

from ascend_quant.files.whole_file import write_whole
from ascend_quant.kernels.tuned import Table, load, merged


def save(file: Path, choices: Table) -> None:
    """Write choices to a file, replacing those of the same shapes and buckets; atomically.

    Raises:
        BadTable: the file exists but does not contain choices.
    """
    whole = merged(load(file), choices)
    written = {
        kind: {
            "x".join(map(str, shape)): {str(rows): choice for rows, choice in sorted(buckets.items())}
            for shape, buckets in sorted(shapes.items())
        }
        for kind, shapes in sorted(whole.items())
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, _text(written))


def _text(content: dict) -> str:
    """Format as JSON, one line per choice."""
    kinds = []
    for kind, shapes in content.items():
        lines = []
        for shape, buckets in shapes.items():
            choices = ",\n".join(f"      {json.dumps(rows)}: {json.dumps(choice)}" for rows, choice in buckets.items())
            lines.append(f"    {json.dumps(shape)}: {{\n{choices}\n    }}")
        kinds.append(f"  {json.dumps(kind)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(kinds) + "\n}\n"
