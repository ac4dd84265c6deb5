"""`sparsepipe run DRIVER.yml`: what a driver file of PipeDream's or SparsePipe's names, as the options of `run`."""

import argparse
from typing import Any

from ..formats.pipedream_driver import DriverFile
from .output import progress_line


def filled(options: argparse.Namespace, driver: DriverFile) -> argparse.Namespace:
    """The options with what the file says wherever the command line says nothing.

    Prints a line for each key of the file that has no meaning here. Raises InputError for a network, or a conf json,
    that is not there.
    """
    for line in driver.without_meaning:
        progress_line(f"{driver.path}: {line}")
    said: dict[str, Any] = {"plan": driver.config_file}
    if options.model is None:
        said["model"] = driver.model
    if options.data is None:
        said["data"] = driver.data
    said |= {name: value for name, value in driver.settings.items() if getattr(options, name, None) is None}
    return argparse.Namespace(**{**vars(options), **said})
