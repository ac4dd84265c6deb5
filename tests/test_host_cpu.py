"""What a machine's processor is called, in records and profiles."""

import pytest

from sparsepipe.util.host import cpu


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (
            "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\n",
            "AMD EPYC (family 26, model 2)",
        ),
        (
            "cpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz\n",
            "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
        ),
        ("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n", ""),
        ("", ""),
    ],
)
def test_a_name_tells_generations_apart(cpuinfo: str, expected: str) -> None:
    """The first processor's, of as many as there are."""
    told = cpu.parsed(cpuinfo + cpuinfo.replace("26", "27"))
    assert cpu.named(told) == expected


def test_this_machine_has_a_name_or_none() -> None:
    assert isinstance(cpu.name(), str)
