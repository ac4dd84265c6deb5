"""What every test shares: one thread a process, the data and reference folders, no network, and loud skips."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: tests start several processes on few cores
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that wait for each other leave the processor to other tests
os.environ["SPARSEPIPE_CACHE"] = "off"  # what one test prepared is nothing to the next, and to the user's own cache

import gc
import importlib.util
import ipaddress
import re
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from sparsepipe.util.host.imports import ADDRESSES, left_out

with left_out(ADDRESSES):
    import nbformat  # noqa: F401 - brings jsonschema, which else takes a second more

REPOSITORY = Path(__file__).resolve().parent.parent

# Ignored in what a shell script puts in the background, and in all that tests would start from there.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The machine is shared: how long an example takes says nothing about the code. Each run of the tests draws others.
hypothesis.settings.register_profile("sparsepipe", deadline=None, print_blob=True, max_examples=25)
hypothesis.settings.load_profile("sparsepipe")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name bytes by their number: their content may differ between the processes that run tests (a date in gzip)."""
    return f"{len(val)} bytes" if isinstance(val, bytes) and len(val) > 32 else None


def _refuse_the_network(event: str, arguments: tuple) -> None:
    """Fail a connection that would leave this machine (an audit hook: libraries cannot pass it by)."""
    if event != "socket.connect":
        return
    connection, address = arguments
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return  # a file's socket, or a datagram socket, whose connect sends nothing
    host = address[0]
    try:
        numeric = ipaddress.ip_address(host)
        local = numeric.is_loopback or numeric.is_unspecified
    except ValueError:
        local = host in ("localhost", socket.gethostname())
    if not local:
        raise ConnectionRefusedError(f"a test tried to connect to {host}: tests use no network")


sys.addaudithook(_refuse_the_network)


def _folder(variable: str, default: Path, what: str) -> Path:
    """Return the folder that the environment variable names, else the default; skip the test where it is not there."""
    path = Path(os.environ.get(variable) or default).resolve()
    if not path.is_dir():
        pytest.skip(f"no {what} at {path}: name its folder in {variable}")
    return path


def _engine(name: str) -> Any:
    """Return an engine; skip the test where it is not installed."""
    from sparsepipe.engines import engine  # here: it brings torch, which many tests need not wait for
    from sparsepipe.errors import InputError

    try:
        return engine(name)
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def minkowski() -> Any:
    """The real MinkowskiEngine."""
    return _engine("minkowski")


@pytest.fixture(scope="module", params=["native", "minkowski"])
def chosen(request: pytest.FixtureRequest) -> Any:
    """Either engine."""
    return _engine(request.param)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real point clouds and meshes: SPARSEPIPE_DATA, else shared/data beside the repository."""
    return _folder("SPARSEPIPE_DATA", REPOSITORY.parent / "shared" / "data", "real data")


@pytest.fixture(scope="session")
def shared_reference() -> Path:
    """The folder of published results: SPARSEPIPE_REFERENCE, else `reference` beside the data folder."""
    data = Path(os.environ.get("SPARSEPIPE_DATA") or REPOSITORY.parent / "shared" / "data")
    return _folder("SPARSEPIPE_REFERENCE", data.resolve().parent / "reference", "published reference results")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A desk with three hosts beside it, which has run "one": on one device, what others are held against."""
    from hosts_desk import desk_of, kept_of_all_workers  # here: they bring torch
    from network_hosts import network_hosts

    folder = tmp_path_factory.mktemp("hosts")
    with network_hosts(3, folder) as network:
        yield desk_of(network, folder, kept_of_all_workers(tmp_path_factory))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A JupyterLab server."""
    from scripts.lab_driver import Lab

    server = Lab(tmp_path_factory.mktemp("lab"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real browser."""
    from scripts import lab_driver

    with lab_driver.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def lab_page(chromium: Any) -> Iterator[Any]:
    """A page in which JupyterLab is loaded once for all tests of a file."""
    from scripts.lab_driver import open_page

    page = open_page(chromium)
    yield page
    page.context.close()


@pytest.fixture
def page(lab_page: Any, lab: Any) -> Iterator[Any]:
    """That page, of which nothing is told yet. Kernels that a test started end with it, explorer.ipynb's left out."""
    size = lab_page.viewport_size
    lab_page.requests.clear()
    lab_page.problems.clear()
    yield lab_page
    lab_page.set_viewport_size(size)
    lab.end_kernels(but="explorer.ipynb")


def _lack(marker: str) -> str | None:
    """Return what this machine lacks for tests with the marker, None where nothing."""
    if marker == "browser":
        if importlib.util.find_spec("playwright") is None:
            return "playwright is not installed"
        if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
            return "no Chromium on PATH"
    if marker == "gpu":
        import torch

        if not torch.cuda.is_available():
            return "no CUDA device"
    return None


# How a failure reads where something did not come in time: a page's, a job's and a subprocess's wait, and `until`.
# (Not pytest-timeout's own: it would not watch the second try.)
_LATE = (
    *("TimeoutError: .*Timeout [0-9]+ms exceeded", "TimeoutError: .*still running after", "TimeoutExpired: "),
    "AssertionError: .*: not within [0-9.]+ s",
    "Error: .*(the cells did not end within|the kernel did not become ready|they move on and on)",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, the tests whose browser or GPU this machine lacks.

    A worker of pytest-xdist is given the longest first, and the quick ones last: it is they that keep all workers busy
    to the end.

    What does not come in time is waited for once more, and the summary names it ("RERUN"): processes, kernels and
    Chromium share two cores with the other tests. What comes and is wrong fails at once.
    """
    for item in items:
        if item.get_closest_marker("flaky") is None and any(map(item.get_closest_marker, ("browser", "slow"))):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=list(_LATE)))
    for marker in ("browser", "gpu"):
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = _lack(marker) if marked else None
        for item in marked if reason else ():
            item.add_marker(pytest.mark.skip(reason=reason))
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Search for no garbage while tests are imported: there is none, and torch is gone through again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep what imports brought out of the search for garbage, which else goes through all of it again and again."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After a file's tests, keep what lives on out of the search for garbage, as after imports.

    Each search would else go through all that earlier files loaded: seconds in tests that ask for many.
    """
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


_TIMEOUT = re.compile(r"pytest\.mark\.timeout\((\d+)")
# What says that tests of a file share something that is made once a module: all of the file's go to one worker of
# pytest-xdist, which else each make it anew. (xdist's own groups, `--dist loadgroup`, do nothing under pytest 9.2:
# xdist 3.8 renames tests in vain.)
_SHARING = re.compile(r'scope="module"|^@cache$|pytest\.mark\.browser|^from hosts_desk import', re.MULTILINE)


@cache
def _shares(file: str) -> bool:
    """Tell whether the tests of a file, named from the repository on, are to go to one worker."""
    return bool(_SHARING.search((REPOSITORY / file).read_text()))


@cache
def _longest(file: str) -> int:
    """The most seconds that a test of the file may take by a mark of its own: those of minutes name one."""
    return max(map(int, _TIMEOUT.findall((REPOSITORY / file).read_text())), default=0)


def _turn(item: pytest.Item) -> tuple[bool, int]:
    """When a test is given to a worker, the least first."""
    file = item.nodeid.split("::")[0]
    is_quick = item.get_closest_marker("slow") is None and not _shares(file)
    return is_quick, 0 if is_quick else -_longest(file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker one test after the other, in no fixed pieces: they differ a thousandfold in length."""
    from xdist.scheduler import LoadScopeScheduling

    # Else files of many tests come first, and those of hosts, which wait much, all at once. They are in order already.
    config.option.loadscopereorder = False

    class OneByOne(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return file if _shares(file) else nodeid

    return OneByOne(config, log)
