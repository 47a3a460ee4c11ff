"""The door of a run: only its own hosts reach what it listens on, and of each host only its own user and root."""
