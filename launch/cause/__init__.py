"""Why a run failed: the exceptions in its logs, which of them came first, and what to do about it."""
