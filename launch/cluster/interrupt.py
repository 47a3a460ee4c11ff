"""Ctrl-C: the first one ends the run in order, the second one at once. SIGTERM and a closed terminal count as one."""

import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Counts the signals while it is entered."""

    def __init__(self) -> None:
        self.count = 0
        self.before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interrupt":
        self.before = {number: signal.signal(number, self._take) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _take(self, *_: object) -> None:
        self.count += 1

    @property
    def asked(self) -> bool:
        """The run is to end."""
        return self.count > 0

    @property
    def insisted(self) -> bool:
        """It is to end now."""
        return self.count > 1
