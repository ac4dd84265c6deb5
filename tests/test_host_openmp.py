"""Processes that compute with MinkowskiEngine on several threads are told how these wait; all others are left alone."""

import pytest

from sparsepipe.launching.local.launch_local import environment_of
from sparsepipe.runtime import RunConfig
from sparsepipe.util.host.cpu import waiting


@pytest.fixture(autouse=True)
def says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("engine", "threads", "told"), [("minkowski", 2, True), ("minkowski", 1, False), ("native", 2, False)]
)
def test_who_is_told(engine: str, threads: int, told: bool) -> None:
    assert waiting(engine, threads) == ({"OMP_WAIT_POLICY": "passive"} if told else {})


@pytest.mark.parametrize(
    ("flags", "installed", "told"),
    [
        ("sse2 avx2", {"llvmlite", "MinkowskiEngine"}, False),
        ("sse2 avx2", {"MinkowskiEngine"}, True),
        ("sse2 avx", {"llvmlite", "MinkowskiEngine"}, True),
        ("sse2 avx", {"llvmlite"}, False),
    ],
)
def test_auto_is_minkowski_where_native_has_no_machine_code(
    flags: str, installed: set[str], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsepipe.util.host.cpu.find_spec", lambda name: name in installed or None)
    monkeypatch.setattr("sparsepipe.util.host.cpu.facts", lambda: {"flags": flags})
    assert bool(waiting("auto", 2)) == told


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "1000")])
def test_what_the_user_says_stands(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert waiting("minkowski", 2) == {}


@pytest.mark.parametrize(
    ("engine", "device", "told"), [("minkowski", "cpu", True), ("native", "cpu", False), ("minkowski", "cuda", False)]
)
def test_workers_are_told(engine: str, device: str, told: bool) -> None:
    config = RunConfig("minkvgg11bn-narrow", "shapes", engine=engine, device=device, threads=2)
    environment = environment_of(config, 1)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment.get("OMP_WAIT_POLICY") == ("passive" if told else None)
