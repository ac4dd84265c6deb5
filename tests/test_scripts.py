"""The scripts, run for real in a copy of the repository whose outside tools (apt-get, pip, id, df) are stand-ins."""

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from coded import mentions
from processes import ENOUGH

REPOSITORY = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
TOOLS = (
    "awk bash cat chmod cp df dirname env find flock grep head id ln ls mkdir mktemp nice nproc printf rm rmdir sed "
    "setsid sha256sum sleep sort tail touch tr uname wc"
).split()


@dataclass(frozen=True)
class Workplace:
    """A copy of the scripts and what they read, with a PATH that holds basic tools and what a test adds."""

    folder: Path
    path: Path  # the only folder on PATH

    def tool(self, name: str, script: str) -> None:
        """Put a command on PATH."""
        self._write(self.path / name, script)

    def installed(self, name: str, script: str) -> None:
        """Put a command into .venv/bin."""
        self._write(self.folder / ".venv" / "bin" / name, script)

    @staticmethod
    def _write(file: Path, script: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text(f"#!/usr/bin/env bash\n{script}\n")
        file.chmod(0o755)

    def log(self) -> list[str]:
        """Return what the stand-ins wrote to $LOG, line by line."""
        file = self.folder / "log"
        return file.read_text().splitlines() if file.exists() else []

    def stamps(self) -> list[str]:
        return [path.name for path in (self.folder / ".venv").glob(".setup-*")]

    def mark_done(self) -> None:
        """Write the stamps that a finished set-up leaves."""
        key = hashlib.sha256()
        for name in ("pyproject.toml", "scripts/setup.sh", "scripts/lock.txt"):
            key.update((self.folder / name).read_bytes())
        (self.folder / ".venv").mkdir(exist_ok=True)
        for suffix in ("", "-engine"):
            (self.folder / ".venv" / f".setup-{key.hexdigest()[:16]}{suffix}").touch()

    def environment(self, **more: str) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "SPARSEPIPE"))
        }
        kept.pop("VIRTUAL_ENV", None)
        return {
            **kept,
            "PATH": str(self.path),
            "LOG": str(self.folder / "log"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",  # no network
            **more,
        }

    def start(self, script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.folder / "scripts" / script), *arguments],
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        with self.start(script, *arguments, **environment) as process:
            out, err = process.communicate(timeout=ENOUGH)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def workplace(tmp_path) -> Workplace:
    place = Workplace(folder=tmp_path / "a repository", path=tmp_path / "bin")
    shutil.copytree(REPOSITORY / "scripts", place.folder / "scripts")
    shutil.copy(REPOSITORY / "pyproject.toml", place.folder)
    (place.folder / "sparsepipe").symlink_to(REPOSITORY / "sparsepipe")
    place.path.mkdir()
    for name in TOOLS:
        (place.path / name).symlink_to(shutil.which(name))
    return place


# A .venv whose pip is a stand-in that logs what it is asked for; {engine} is what building MinkowskiEngine does, and
# {imports} what becomes of the import of all at the end: it would take seconds each time.
PYTHON_WITHOUT_PIP = """
case "$*" in
  "-m pip install"*MinkowskiEngine*) echo "pip PATH=$PATH MAX_JOBS=$MAX_JOBS ${{*:4}}" >>"$LOG"; {engine} ;;
  "-m pip install"*) echo "pip ${{*:4}}" >>"$LOG"; echo "PYTHONPATH=${{PYTHONPATH:-}}" >>"$LOG.path" ;;
  "-m pytest"*) echo "pytest ${{*:3}} [$SPARSEPIPE_DATA]" >>"$LOG"; exit {tests} ;;
  "-W ignore -") exit 1 ;;  # is MinkowskiEngine there? No.
  "-c import sparsepipe, torch") {imports} ;;
  *) exec {python} "$@" ;;
esac
"""


def venv_python(engine: str = "exit 1", tests: int = 0, imports: str = "exit 0") -> str:
    return PYTHON_WITHOUT_PIP.format(engine=engine, tests=tests, imports=imports, python=sys.executable)


def with_compiler(place: Workplace) -> None:
    """Let the machine have what MinkowskiEngine's build needs, and a browser."""
    place.tool("python3", f'exec {sys.executable} "$@"')
    place.tool("c++", "exit 0")
    for name in ("chromium", "pdftotext"):
        place.tool(name, "exit 0")


def locked(*names: str) -> list[list[str]]:
    """Return the names with their versions in the lock file."""
    rows = [line.split("==") for line in (REPOSITORY / "scripts" / "lock.txt").read_text().splitlines() if "==" in line]
    return [row for row in rows if row[0] in names]


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


class TestSetup:
    def test_refuses_an_unknown_argument_in_one_line(self, workplace):
        result = workplace.run("setup.sh", "--fast")
        assert result.returncode == 2
        assert [mentions(line, "--fast", "--force", "--no-wait") for line in lines(result.stderr)] == [True]

    def test_asks_for_a_newer_python_in_one_line(self, workplace):
        workplace.tool("python3", 'if [ "$1" = --version ]; then echo "Python 3.9.2"; else exit 1; fi')
        result = workplace.run("setup.sh")
        assert result.returncode == 1
        (line,) = lines(result.stderr)
        assert mentions(line, "3.11", "PATH", "3.9.2")
        assert not (workplace.folder / ".venv").exists()

    def test_asks_for_room_in_one_line(self, workplace):
        with_compiler(workplace)
        workplace.tool("df", 'echo "Filesystem 1M-blocks Used Available"; echo "/dev/sda 9000 8877 123"')
        result = workplace.run("setup.sh", SPARSEPIPE_NO_APT="1")
        assert result.returncode == 1
        (line,) = lines(result.stderr)
        assert re.search(r"123 MiB free.*\d+ MiB needed", line)

    def test_done_before_returns_silently(self, workplace):
        workplace.installed("python", "exit 0")
        workplace.mark_done()
        result = workplace.run("setup.sh")  # there is no python3 on PATH: it would fail if it went on
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")

    @pytest.mark.parametrize("changed", ["pyproject.toml", "scripts/setup.sh", "scripts/lock.txt"])
    def test_a_change_of_what_is_needed_is_set_up_again(self, workplace, changed):
        workplace.installed("python", "exit 0")
        workplace.mark_done()
        with (workplace.folder / changed).open("a") as file:
            file.write("# changed\n")
        assert mentions(workplace.run("setup.sh").stderr, "3.11")

    def test_force_and_a_broken_environment_are_set_up_again(self, workplace):
        workplace.installed("python", "exit 0")
        workplace.mark_done()
        assert mentions(workplace.run("setup.sh", "--force").stderr, "3.11")
        workplace.installed("python", "exit 1")
        assert mentions(workplace.run("setup.sh").stderr, "3.11")

    @pytest.mark.slow
    def test_without_network_says_what_pip_could_not_install(self, workplace):
        with_compiler(workplace)
        for _ in range(2):  # and again: what is there does not get in the way
            result = workplace.run("setup.sh", SPARSEPIPE_NO_APT="1")
            assert result.returncode == 1
            last = lines(result.stderr)[-1]
            assert mentions(last, "torch==2.13.0", "ERROR", "torch==2.13.0")
            assert workplace.stamps() == []
        assert "virtual environment" not in result.stderr  # the second call kept the first one's

    def test_root_has_debian_packages_installed_those_for_the_build_first(self, workplace):
        workplace.tool("python3", f'exec {sys.executable} "$@"')
        workplace.tool("id", "echo 0")
        workplace.tool("dpkg", 'echo "dpkg $*" >>"$LOG"')
        workplace.tool("apt-get", 'echo "apt-get $*" >>"$LOG"')
        workplace.installed("python", venv_python())
        result = workplace.run("setup.sh")
        assert result.returncode == 0
        update, resume, build, _, view = [line for line in workplace.log() if line.startswith(("apt-get", "dpkg"))]
        assert update == "apt-get -q update"
        assert resume == "dpkg --configure -a"  # an install that was cut short
        assert {"build-essential", "libopenblas-dev"} <= set(build.split())
        assert {"chromium", "poppler-utils"} <= set(view.split())
        assert {"-y", "--no-install-recommends"} <= set(view.split())
        # The stand-in installed nothing, so there is still no compiler.
        assert len([line for line in lines(result.stderr) if "cannot be built" in line]) == 1

    def test_what_lies_on_the_callers_python_path_is_installed_all_the_same(self, workplace):
        with_compiler(workplace)
        workplace.installed("python", venv_python())
        assert workplace.run("setup.sh", SPARSEPIPE_NO_APT="1", PYTHONPATH="/somewhere/else").returncode == 0
        seen = (workplace.folder / "log.path").read_text().splitlines()
        assert seen and set(seen) == {"PYTHONPATH="}

    @pytest.mark.slow
    def test_without_root_says_in_one_line_each_what_is_missing_and_what_it_costs(self, workplace):
        workplace.tool("python3", f'exec {sys.executable} "$@"')
        workplace.tool("id", "echo 1000")
        workplace.tool("apt-get", 'echo "apt-get $*" >>"$LOG"')
        workplace.installed("python", venv_python())
        result = workplace.run("setup.sh")
        assert result.returncode == 0
        assert not [line for line in workplace.log() if line.startswith("apt-get")]
        (view,) = [line for line in lines(result.stderr) if "missing: chromium" in line]
        assert "figure" in view
        (engine,) = [line for line in lines(result.stderr) if "MinkowskiEngine" in line]
        assert "without build-essential libopenblas-dev" in engine
        assert "native engine" in engine

    def test_installs_torch_first_then_builds_the_engine_beside_the_rest(self, workplace):
        with_compiler(workplace)
        workplace.installed("python", venv_python())
        result = workplace.run("setup.sh")
        assert result.returncode == 0
        first, *rest = workplace.log()
        assert {"torch==2.13.0", *(f"{name}=={version}" for name, version in locked("numpy", "ninja"))} <= {
            *first.split()
        }
        (engine,) = [line for line in rest if "MinkowskiEngine" in line]
        # Its own set-up calls `pip` and `ninja` by name, which a bare machine has in .venv alone.
        assert re.match(rf"pip PATH={re.escape(str(workplace.folder))}/.venv/bin:\S+ MAX_JOBS=\d+ ", engine)
        assert engine.endswith(
            "--use-pep517 --no-build-isolation --no-deps --config-settings=--global-option=--blas=openblas "
            "MinkowskiEngine==0.5.4"
        )
        assert [line for line in rest if line.endswith("--no-build-isolation -e .[dev]")]

    def test_an_engine_that_cannot_be_built_costs_one_line_and_is_not_tried_again(self, workplace):
        with_compiler(workplace)
        workplace.installed("python", venv_python(engine="echo no such header; exit 1"))
        result = workplace.run("setup.sh")
        assert result.returncode == 0
        (line,) = [line for line in lines(result.stderr) if "could not be built" in line]
        assert "native engine" in line
        assert "no such header" in (workplace.folder / ".venv" / "minkowski-build.log").read_text()
        assert len(workplace.stamps()) == 2
        before = workplace.log()
        assert workplace.run("setup.sh").returncode == 0
        assert workplace.log() == before

    @pytest.mark.slow
    def test_interrupted_it_ends_the_build_and_goes_on_the_next_time(self, workplace):
        with_compiler(workplace)
        workplace.installed("python", venv_python(engine='echo "building $$" >>"$LOG"; sleep 600 & wait'))
        with workplace.start("setup.sh") as process:
            builder = wait_for(
                lambda: next((int(line.split()[1]) for line in workplace.log() if "building" in line), None)
            )
            wait_for(lambda: any("-e .[dev]" in line for line in workplace.log()))
            process.terminate()
            process.communicate(timeout=ENOUGH)
        assert process.returncode != 0
        wait_for(lambda: not group_is_alive(builder))
        assert not [name for name in workplace.stamps() if name.endswith("-engine")]
        workplace.installed("python", venv_python())
        assert workplace.run("setup.sh").returncode == 0
        assert len(workplace.stamps()) == 2

    def test_what_does_not_import_is_told_in_one_line_and_set_up_again(self, workplace):
        with_compiler(workplace)
        workplace.installed("python", venv_python(imports='echo "ImportError: libtorch.so" >&2; exit 1'))
        result = workplace.run("setup.sh")
        assert result.returncode == 1 and mentions(lines(result.stderr)[-1], "ImportError: libtorch.so")
        assert not [name for name in workplace.stamps() if not name.endswith("-engine")]

    def test_without_a_compiler_ends_well_and_is_not_tried_again(self, workplace):
        workplace.tool("python3", f'exec {sys.executable} "$@"')  # and neither cc nor c++ on PATH
        workplace.installed("python", venv_python(engine="exit 0"))
        result = workplace.run("setup.sh", "--no-wait", SPARSEPIPE_NO_APT="1")
        assert result.returncode == 0 and len(workplace.stamps()) == 2
        assert not [line for line in workplace.log() if "MinkowskiEngine" in line]
        (engine,) = [line for line in lines(result.stderr) if "MinkowskiEngine" in line]
        assert "build-essential" in engine
        again = workplace.run("setup.sh", SPARSEPIPE_NO_APT="1")
        assert (again.returncode, again.stderr) == (0, "")


BUILDING = 'echo "building $$ $(nice)" >>"$LOG"; until [ -e "$LOG.go" ]; do sleep 0.05; done; exit 1'


def builders(place: Workplace) -> list[tuple[int, int]]:
    """Return process id and niceness of each build that began."""
    return [(int(line.split()[1]), int(line.split()[2])) for line in place.log() if line.startswith("building")]


class TestBuildInTheBackground:
    """MinkowskiEngine's build continues while notebooks of the native engine run; whoever needs it waits for it."""

    @pytest.fixture
    def building(self, workplace) -> Workplace:
        with_compiler(workplace)
        workplace.installed("python", venv_python(engine=BUILDING))
        result = workplace.run("setup.sh", "--no-wait")
        assert result.returncode == 0
        assert "whose build continues" in lines(result.stderr)[-1]
        return workplace

    def test_it_has_the_lowest_priority_and_goes_on_without_the_set_up(self, building):
        wait_for(lambda: builders(building))
        ((builder, niceness),) = builders(building)
        assert niceness == 19 and group_is_alive(os.getpgid(builder))
        again = building.run("setup.sh", "--no-wait")
        assert (again.returncode, again.stderr) == (0, "") and len(builders(building)) == 1
        (building.folder / "log.go").touch()
        wait_for(lambda: len(building.stamps()) == 2)

    def test_a_set_up_waits_for_it(self, building):
        with building.start("setup.sh") as waiting:
            assert "waiting" in waiting.stderr.readline()
            assert waiting.poll() is None
            (building.folder / "log.go").touch()
            waiting.communicate(timeout=ENOUGH)
        assert waiting.returncode == 0 and len(builders(building)) == 1 and len(building.stamps()) == 2

    def test_one_that_was_killed_is_repeated_by_the_next_set_up(self, building):
        wait_for(lambda: builders(building))
        group = os.getpgid(builders(building)[0][0])
        os.killpg(group, signal.SIGKILL)
        wait_for(lambda: not group_is_alive(group))
        (building.folder / "log.go").touch()
        assert building.run("setup.sh").returncode == 0
        assert len(builders(building)) == 2 and len(building.stamps()) == 2

    def test_two_set_ups_at_once_build_it_once(self, workplace):
        with_compiler(workplace)
        workplace.installed("python", venv_python(engine=BUILDING))
        with workplace.start("setup.sh") as one, workplace.start("setup.sh") as other:
            wait_for(lambda: builders(workplace))
            (workplace.folder / "log.go").touch()
            for process in (one, other):
                process.communicate(timeout=ENOUGH)
        assert (one.returncode, other.returncode) == (0, 0)
        assert len(builders(workplace)) == 1 and len(workplace.stamps()) == 2


def wait_for(condition: Callable):
    """Return the condition's first true value."""
    end = time.monotonic() + ENOUGH
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"it did not come about: not within {ENOUGH:g} s")


def group_is_alive(group: int) -> bool:
    """Tell whether a process of the group still runs (one that has ended and waits to be collected does not)."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = status.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of_group) == group and state != "Z":
            return True
    return False


@pytest.fixture
def set_up(workplace) -> Workplace:
    """A workplace whose set-up is done; its checkers are stand-ins."""
    workplace.installed("python", venv_python())
    for name in ("ruff", "mypy", "nbstripout", "sparsepipe"):
        workplace.installed(name, f'echo "{name} $*" >>"$LOG"')
    workplace.mark_done()
    return workplace


def pytest_called(set_up: Workplace) -> str:
    """Return how pytest was called last. Types are checked beside it."""
    return [line for line in set_up.log() if line.startswith("pytest ")][-1]


class TestTest:
    def test_runs_every_check_and_every_test(self, set_up):
        (set_up.folder / "notebooks").mkdir()
        (set_up.folder / "notebooks" / "00_start.ipynb").touch()
        assert set_up.run("test.sh", "-k", "a plan").returncode == 0
        commands = set_up.log()
        commands.remove("mypy ")  # beside the others
        assert commands[:2] == ["ruff check .", "ruff format --check ."]
        assert commands[2].startswith("nbstripout --verify ")
        assert commands[2].endswith("notebooks/00_start.ipynb")
        assert commands[3:] == ["pytest -n 4 -k a plan []"]

    def test_fast_leaves_out_the_slow_ones(self, set_up):
        assert set_up.run("test.sh", "--fast", "-x").returncode == 0
        assert pytest_called(set_up) == "pytest -n 3 -m not slow -x []"

    def test_finds_real_data_beside_the_repository_unless_told(self, set_up):
        data = set_up.folder.parent / "shared" / "data"
        data.mkdir(parents=True)
        set_up.run("test.sh")
        assert pytest_called(set_up) == f"pytest -n 4 [{data}]"
        set_up.run("test.sh", SPARSEPIPE_DATA="elsewhere")
        assert pytest_called(set_up) == "pytest -n 4 [elsewhere]"

    def test_goes_on_after_a_failed_check_and_fails_at_the_end(self, set_up):
        set_up.installed("mypy", "exit 1")
        result = set_up.run("test.sh")
        assert result.returncode == 1
        assert pytest_called(set_up) == "pytest -n 4 []"
        assert lines(result.stderr)[-1] == "test.sh: failed: types"

    def test_failed_tests_fail_it(self, set_up):
        set_up.installed("python", venv_python(tests=1))
        assert set_up.run("test.sh").returncode == 1


class TestReproduce:
    def test_hands_arguments_output_and_exit_code_through(self, set_up):
        set_up.installed("sparsepipe", 'printf "<%s>" "$@"; exit 2')
        result = set_up.run("reproduce.sh", "a figure", "--jobs", "2")
        assert result.returncode == 2
        assert result.stdout == "<reproduce><a figure><--jobs><2>"
        assert re.fullmatch(r"set-up took \d+ s", lines(result.stderr)[-1])

    def test_goes_no_further_than_a_set_up_that_failed(self, workplace):
        result = workplace.run("reproduce.sh")
        assert result.returncode == 1
        assert len(lines(result.stderr)) == 1


class TestLab:
    @pytest.mark.parametrize("port", ["eighty", "80a", "8888x"])
    def test_refuses_what_is_no_port(self, set_up, port):
        result = set_up.run("lab.sh", port)
        assert result.returncode == 2
        assert [mentions(line, port, 65535) for line in lines(result.stderr)] == [True]

    def test_refuses_a_port_in_use_in_one_line(self, set_up):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            result = set_up.run("lab.sh", str(port))
        assert result.returncode == 2
        (line,) = lines(result.stderr)
        assert mentions(line, port, "127.0.0.1")

    def test_refuses_a_port_that_does_not_exist(self, set_up):
        result = set_up.run("lab.sh", "70000")
        assert result.returncode == 2
        assert len(lines(result.stderr)) == 1

    @pytest.mark.slow
    def test_serves_the_notebooks_on_this_machine_only_behind_a_token(self, set_up, tmp_path):
        if not (BIN / "jupyter-lab").exists():
            pytest.skip("JupyterLab is not installed beside this Python")
        set_up.installed("jupyter-lab", f'exec {BIN / "jupyter-lab"} "$@"')
        (set_up.folder / "notebooks").mkdir()
        (set_up.folder / "notebooks" / "00_start.ipynb").touch()
        with set_up.start("lab.sh", HOME=str(tmp_path)) as process:
            try:
                address = re.search(
                    r"http://127\.0\.0\.1:(\d+)/lab/tree/notebooks/00_start.ipynb\?token=(\S+)",
                    process.stdout.readline(),
                )
                port, token = int(address[1]), address[2]
                assert len(token) >= 24

                def get(path: str) -> bytes | None:
                    request = urllib.request.Request(
                        f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"token {token}"}
                    )
                    try:
                        with urllib.request.urlopen(request, timeout=ENOUGH) as answer:
                            return answer.read()
                    except urllib.error.HTTPError as error:
                        with error:
                            raise
                    except OSError:
                        return None  # not listening yet

                wait_for(lambda: get("/api/status"))
                shown = {entry["name"] for entry in json.loads(get("/api/contents"))["content"]}
                assert {"notebooks", "scripts"} <= shown and ".venv" not in shown  # the checkout, not a part of it
                notebooks = json.loads(get("/api/contents/notebooks"))["content"]
                assert [entry["name"] for entry in notebooks] == ["00_start.ipynb"]
                assert "python3" in json.loads(get("/api/kernelspecs"))["kernelspecs"]
                page = get("/lab").decode()
                settings = json.loads(re.search(r'id="jupyter-config-data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
                assert "@jupyterlab/apputils-extension:announcements" in settings["disabledExtensions"]
                assert settings["extensionManager"]["can_install"] is False
                assert b".jp-RenderedPlotly" in get("/custom/custom.css") and 'custom/custom.css"' in page

                token = "wrong"
                with pytest.raises(urllib.error.HTTPError, match="403"):
                    get("/api/contents")
                assert listening(port) == {"0100007F"}  # 127.0.0.1 as the kernel prints it
                command_line = Path(f"/proc/{process.pid}/cmdline").read_text()
                assert address[2] not in command_line
            finally:
                os.killpg(process.pid, signal.SIGTERM)
                process.communicate(timeout=ENOUGH)


def listening(port: int) -> set[str]:
    """Return the addresses, in hexadecimal, at which something listens on the port (Linux)."""
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = row.split()
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                found.add(address)
    return found
