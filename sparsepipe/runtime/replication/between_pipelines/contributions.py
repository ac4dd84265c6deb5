"""After which updates a pipeline contributes to merges."""

from collections.abc import Callable

from ...pipelines.base import Coordinator

_KEPT = 64  # updates that a rank's stages may be apart


class Contributions:
    """One rank's view: its pipeline's last stage's first replica decides, the other ranks ask.

    All stages of a rank share it. If one of them is the last stage, whichever comes to an update first decides for
    it: the rank's others may come before, in the same thread.
    """

    def __init__(self, coordinator: Coordinator, every: int, *, leads: bool) -> None:
        """`leads`: the rank has the last stage's first replica."""
        self._coordinator, self._every, self._leads = coordinator, every, leads
        self._known: dict[int, int | None] = {}
        self._samples = 0
        self.busy: Callable[[], bool] = lambda: False  # whether the last contribution has no outcome yet

    @property
    def samples(self) -> int:
        """What the pipeline trained on since its last contribution; 0 on ranks that do not decide on them."""
        return self._samples if self._leads else 0

    def go_on(self, samples: int) -> None:
        """Go on after so many samples since the last contribution, on whichever rank decides from now on."""
        self._samples = samples if self._leads else 0

    def number(self, update: int, *, samples: int) -> int | None:
        """Return the number of the contribution after an update, None if there is none.

        `samples` have been trained on by the pipeline since the update before.
        """
        if update not in self._known:
            self._samples += samples
            self._known[update] = None if (update + 1) % self._every else self._told(update)
            self._known.pop(update - _KEPT, None)
        return self._known[update]

    def _told(self, update: int) -> int | None:
        if not self._leads:
            return self._coordinator.contribution(update)
        if self.busy():
            self._coordinator.pass_over(update)
            return None
        samples, self._samples = self._samples, 0
        return self._coordinator.contribute(update, samples=samples)
