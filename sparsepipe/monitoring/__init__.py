"""What changes while a job runs: how slow each device and link is now, and what to do about it.

factors.py        devices and links as they are now, compared with what their profile and cluster say
drift.py          Watch: spans and sizes of a run in, alarms and factors out; the ratios of one rank or link
predictions.py       what ranks and links should take for a minibatch of a size
factors.py   what spans tell: a rank's work on a minibatch, a transfer without its queue
change_point.py   the test for lasting changes, with its sources
drift_file.py         the messages about them
of_runs.py        the drift of a run, by its record: a watch for each pipeline, drift_of, and Follower while it goes
of_runs.py       spans and sizes from a run's files while they grow
drift_file.py     what a follower writes of it to the record

decision.py         whether another plan pays for the devices as they are now
outcomes.py       how long minibatches really take; what changes gave compared with what they were to give, and how far
                  the next is to be believed
moves.py          what changes hands from one plan to another, and what that takes
variants.py       never, epoch, measured, predicted, live: ways to answer, a row each
replanner.py      the loop without a job: spans in, decisions out
following.py      the loop of a running job; launching.py starts a job with it
predictions.py    what a predictor expects of a running job's ranks, by what the machine says of them
simulated.py      the loop of a simulation, over change_point.py; simulated.py: what who knew all that comes would get
"""

from ..util.lazy_names import lazy_names
from .decision import Decision, decide
from .drift import Watch
from .drift_file import Alarm, Standing
from .factors import Factors
from .of_runs import Follower, RunRows, Watches, drift_of

__all__ = [
    "Alarm",
    "Decision",
    "Factors",
    "Follower",
    "RunRows",
    "Standing",
    "Watch",
    "Watches",
    "decide",
    "drift_of",
]

__getattr__, __dir__ = lazy_names(globals(), {}, folders=("interference", "variants"))
