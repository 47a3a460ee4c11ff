"""Entry point of `ascend-quant`: run a command, or name the missing dependency in one line.

The package itself depends only on torch and numpy, since the engine's environment determines all other versions.
"""

import sys

COMMANDS = frozenset(("typer", "rich", "yaml", "pydantic", "safetensors", "huggingface_hub", "psutil", "hydra"))
ENGINE = frozenset(("vllm", "transformers", "torch", "numpy"))


def main() -> None:
    """The console script.

    Raises:
        ModuleNotFoundError: a missing module belongs neither to the commands nor to the engine.
    """
    try:
        from ascend_quant.commands.app import app

        app(prog_name="ascend-quant")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in COMMANDS | ENGINE:
            raise
        print(f"ascend-quant: {missing} is not installed. {remedy(missing)}", file=sys.stderr)
        sys.exit(2)


def remedy(missing: str) -> str:
    """Return what to do about a missing module."""
    pip = f"{sys.executable} -m pip install"
    if missing in COMMANDS:
        return f"Run: {pip} 'ascend-quant[cli]'"
    return f"It comes with vLLM: call this in the engine's environment, or run: {pip} 'ascend-quant[cuda]' (CPU: [cpu])"


if __name__ == "__main__":
    main()
