"""Whether this machine has the device and the data that a run asks for: told before its folder is made."""

from ..data.examples.recognising import is_examples
from ..data.folder import open_folder
from ..data.sources import found
from ..functions import is_function
from ..models import is_table
from ..runtime import RunConfig
from ..runtime.cloud_checks import check_clouds
from ..workload_facts import workload_facts

# Which of the settings are held against what the data are, beside the split that is validated on.
_OF_DATA = {"task", "features", "augmentation", "data_args", "loss", "loss_args", "validation_split"}


def check_here(config: RunConfig) -> None:
    """Raise InputError where workers on this machine would find no such device or data: see `_check_data`."""
    if not workload_facts(config.engine).trains:
        return
    if config.device != "cpu":
        from ..runtime.processes.devices import check_device  # here: it brings torch

        check_device(config.device)
    _check_data(config)


def _check_data(config: RunConfig) -> None:
    """Raise InputError where workers on this machine would find no data of that name, or none for the other settings.

    Point clouds are read, once for the same data and settings. A function of the user's own is called, and data that
    are made when they are first opened are made, only where such a setting is given.
    """
    own, asked = is_function(config.data), _OF_DATA & config.chosen.keys()
    place = None if own else found(config.data)
    if asked or (place is not None and not is_table(config.model)):
        # Here: it brings torch, for which nobody who launches a table with settings as by default need wait.
        from ..runtime.workloads.opening import check_settings

        check_settings(config, seed=config.seed)
    if place is not None and not is_examples(place):
        splits = ("train", *([config.validation_split] if config.validate else []))
        check_clouds(open_folder(place), config, splits, engine=config.engine, seed=config.seed)
