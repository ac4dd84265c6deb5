"""How the learning rate goes over a run, as a function of the minibatches done: the same under every plan."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from ..errors import CODE_FAILURES, InputError
from ..util.io.fields import complaint, shown
from ..util.io.functions import UserFunction, is_function
from ..util.io.quantities import expected

Arguments = Mapping[str, Any]  # of a schedule, by name


class Progress(NamedTuple):
    """The progress of a run: minibatches since the warm-up, of how many, all epochs, losses of past validations."""

    minibatches: int
    total: int
    epochs: float
    losses: Sequence[float]

    @property
    def share(self) -> float:
        """The share of the run that is done since the warm-up, from 0 to 1."""
        return min(1.0, self.minibatches / max(1, self.total))


# Arguments of schedules, with their defaults; () stands for a list of numbers.
SCHEDULE_ARGS: dict[str, Arguments] = {
    "one-cycle": {"rise": 0.3, "start": 0.04, "end": 4e-6},  # share of the run that rises; factors at both ends
    "cosine-restarts": {"growth": 1.0, "least": 0.0},  # of the cycle from one to the next; the smallest factor
    "milestones": {"epochs": ()},
    "plateau": {"patience": 10, "threshold": 1e-4},  # epochs without a better validation loss; by how much at least
}


@dataclass(frozen=True)
class LearningRate:
    """A schedule with a linear warm-up before it.

    Args:
        base: The rate that the schedule's factors multiply.
        schedule: One of LR_SCHEDULES, or a function of the user's own, which returns the factor:
            `function(minibatch, epoch_minibatches=…, total_minibatches=…, **args)`.
        warmup: Minibatches over which the rate rises.
        decay: The factor of step, exponential, milestones and plateau; the power of polynomial.
        decay_epochs: Epochs between two factors of step and exponential; the first cycle of cosine-restarts.
        args: Arguments of the schedule, see SCHEDULE_ARGS.
    """

    base: float
    schedule: str = "constant"
    warmup: int = 0
    decay: float = 0.1
    decay_epochs: float = 30.0
    args: Arguments = field(default_factory=dict)

    def at(
        self, minibatch: int, *, epoch_minibatches: int, total_minibatches: int, losses: Sequence[float] = ()
    ) -> float:
        """Return the rate of the update whose first minibatch is `minibatch` of the whole run.

        `losses`: of the validations before it, one an epoch. Raises InputError if a function of the user's own fails.
        """
        if minibatch < self.warmup:
            return self.base * (minibatch + 1) / self.warmup
        if is_function(self.schedule):
            counts = {"epoch_minibatches": epoch_minibatches, "total_minibatches": total_minibatches}
            return self.base * _factor_of_function(self.schedule, minibatch, {**counts, **self.args})
        progress = Progress(
            minibatch - self.warmup, total_minibatches - self.warmup, minibatch / epoch_minibatches, losses
        )
        try:
            return self.base * LR_SCHEDULES[self.schedule](self, progress)
        except OverflowError:  # of a factor above 1
            return math.inf

    def argument(self, name: str) -> Any:
        """Return an argument of the schedule, its default unless it is given."""
        return self.args.get(name, SCHEDULE_ARGS[self.schedule][name])


def check_arguments(schedule: str, args: Arguments) -> None:
    """Raise InputError for arguments that a schedule does not take; a function of the user's own says so itself."""
    if is_function(schedule):
        return
    known = SCHEDULE_ARGS.get(schedule, {})
    for name, value in args.items():
        if name not in known:
            what = expected(name, known) if known else "it takes none"
            text = f"{{schedule_args}} of {schedule}: {shown(name)}: {what}"
            raise InputError("setting.schedule_argument", text, setting="schedule_args")
        numbers = value if isinstance(known[name], tuple) else [value]
        if not isinstance(numbers, list) or not all(
            isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < math.inf
            for number in numbers
        ):
            what = "a list of numbers" if isinstance(known[name], tuple) else "a number"
            text = f"{{schedule_args}} of {schedule}: {name} is {shown(value)}, expected {what} of 0 or more"
            raise InputError("setting.schedule_argument", text, setting="schedule_args")
    if schedule == "milestones" and not args.get("epochs"):
        text = '{schedule_args} of milestones lack the epochs; add them, such as "epochs": [30, 60]'
        raise InputError("setting.schedule_argument", text, setting="schedule_args")
    if args.get("growth", 1) < 1 or args.get("rise", 0) > 1:
        text = "{schedule_args}: expected a growth of at least 1 and a rise of at most 1"
        raise InputError("setting.schedule_argument", text, setting="schedule_args")


def _factor_of_function(schedule: str, minibatch: int, given: Arguments) -> float:
    function = _loaded(schedule)
    try:
        factor = float(function(minibatch, **given))
    except CODE_FAILURES as error:  # whatever the function raises
        what = f"{type(error).__name__}: {complaint(error, None)}"
        raise InputError(
            "schedule.raises", f"{{learning_rate_schedule}} {schedule} raises {what} at minibatch {minibatch}"
        ) from error
    if not 0 <= factor < math.inf:
        raise InputError(
            "schedule.no_factor",
            f"{{learning_rate_schedule}} {schedule}: {factor} for minibatch {minibatch}, expected 0 or more",
        )
    return factor


@lru_cache(maxsize=8)
def _loaded(schedule: str) -> Callable[..., float]:
    return UserFunction.parse(schedule).load()


def _arc(start: float, end: float, share: float) -> float:
    """Return the point of half a cosine from `start` to `end`."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


def _one_cycle(rate: LearningRate, progress: Progress) -> float:
    """Rise, then fall far below the start (Smith and Topin, "Super-Convergence"); as torch's OneCycleLR."""
    top = rate.argument("rise") * progress.total - 1
    done, start, end = progress.minibatches, rate.argument("start"), rate.argument("end")
    if done <= top:
        return _arc(start, 1.0, done / top if top else 1.0)
    return _arc(1.0, end, min(1.0, (done - top) / max(1e-9, progress.total - 1 - top)))


def _cosine_restarts(rate: LearningRate, progress: Progress) -> float:
    """Half a cosine again and again (Loshchilov and Hutter, "SGDR"), each longer by the factor `growth`."""
    left, cycle, growth = progress.epochs, rate.decay_epochs, rate.argument("growth")
    if growth == 1:
        left %= cycle
    while left >= cycle:
        left, cycle = left - cycle, cycle * growth
    return _arc(1.0, rate.argument("least"), left / cycle)


def _plateau(rate: LearningRate, progress: Progress) -> float:
    """One factor each time that the validation loss has not fallen for `patience` epochs; as ReduceLROnPlateau."""
    factor, best, waited = 1.0, math.inf, 0
    for loss in progress.losses:
        if loss < best * (1 - rate.argument("threshold")):
            best, waited = loss, 0
            continue
        waited += 1
        if waited > rate.argument("patience"):
            factor, waited = factor * rate.decay, 0
    return factor


# name -> factor on the learning rate
LR_SCHEDULES: dict[str, Callable[[LearningRate, Progress], float]] = {
    "constant": lambda rate, progress: 1.0,
    "step": lambda rate, progress: rate.decay ** math.floor(progress.epochs / rate.decay_epochs),
    "exponential": lambda rate, progress: rate.decay ** (progress.epochs / rate.decay_epochs),
    "polynomial": lambda rate, progress: (1 - progress.share) ** rate.decay,
    "cosine": lambda rate, progress: _arc(1.0, 0.0, progress.share),
    "cosine-restarts": _cosine_restarts,
    "one-cycle": _one_cycle,
    "milestones": lambda rate, progress: (
        rate.decay ** sum(progress.epochs >= epoch for epoch in rate.argument("epochs"))
    ),
    "plateau": _plateau,
}
