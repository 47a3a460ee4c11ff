"""Progress of a command: rich's progress bars on a terminal, otherwise (log, pipe, CI) an occasional line."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn

FIRST_SECONDS, MOST_SECONDS = 5.0, 20.0


class Bars(Progress):
    """Rich's bars; without a terminal, a line for each active bar after 5 s, then every 10 to 20 s.

    Bars that are not `transient` also print a line when they are complete.
    """

    def __init__(self, *columns: str | ProgressColumn, console: Console, transient: bool = False) -> None:
        super().__init__(*columns, console=console, transient=transient, disable=not console.is_interactive)
        self._over, self._speaker = Event(), Thread(target=self._speak, daemon=True)
        self._stay, self._told = not transient, set[TaskID]()

    def start(self) -> None:
        """Show the bars, or start printing lines."""
        super().start()
        if self.disable:
            self._speaker.start()

    def stop(self) -> None:
        """Remove the bars, or stop printing lines."""
        super().stop()
        self._over.set()
        if self._speaker.is_alive():
            self._speaker.join()
            self._tell_complete()

    def _speak(self) -> None:
        wait = FIRST_SECONDS
        while not self._over.wait(wait):
            self._tell_complete()
            for task in self.tasks:
                if not task.finished:
                    self._tell(task)
                    wait = min(2 * wait, MOST_SECONDS)

    def _tell_complete(self) -> None:
        for task in self.tasks:
            if self._stay and task.finished and task.id not in self._told:
                self._told.add(task.id)
                self._tell(task)

    def _tell(self, task: Task) -> None:
        done = f"{task.completed / task.total:.0%} " if task.total else ""
        line = f"{task.description}: {done}after {task.elapsed or 0:.0f} s"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Print to stderr what the command waits for."""
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False)
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        bars.add_task(what, total=None)
        yield


@contextmanager
def counting(what: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the remaining time; yields a function that takes the finished and the total amount."""
    with Bars(console=console, transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
