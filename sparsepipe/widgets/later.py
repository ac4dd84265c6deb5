"""Work that is done a moment after it was last asked for, beside the page: of a dragged slider the last move."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Asked = TypeVar("Asked")


class Later(Generic[Asked]):
    """Calls `act` with what was asked last, `pause` seconds after it was, in one thread that ends when nothing is left.

    What is asked while `act` is at work comes after it; what was asked before that, and not begun, is dropped. `act`
    must raise nothing.
    """

    def __init__(self, act: Callable[[Asked], None], *, pause: float, name: str) -> None:
        self._act, self._pause, self._name = act, pause, name
        self._turn = threading.Condition()
        self._asked: list[Asked] = []  # one or none
        self._due = 0.0
        self._thread: threading.Thread | None = None

    def ask(self, what: Asked) -> None:
        with self._turn:
            self._asked, self._due = [what], time.monotonic() + self._pause
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def drop(self) -> None:
        """Forget what was asked and is not begun."""
        with self._turn:
            self._asked = []

    def _work(self) -> None:
        while True:
            with self._turn:
                while self._asked and (left := self._due - time.monotonic()) > 0:
                    self._turn.wait(left)
                if not self._asked:
                    self._thread = None
                    return
                (what,), self._asked = self._asked, []
            self._act(what)
