"""What `Link?` and `partition?` show in a notebook: units, and every choice there is."""

from dataclasses import fields
from inspect import getdoc

from sparsepipe import SCHEDULES, Cluster, DeviceType, Link, Node, partition
from sparsepipe.planners import PLANNERS


def test_a_link_says_its_units():
    assert "bytes per second" in getdoc(Link) and "seconds" in getdoc(Link)
    assert "bytes" in getdoc(DeviceType) and "address" in getdoc(Node) and "memory_bytes" in getdoc(Cluster.uniform)


def test_partition_lists_planners_their_options_and_schedules():
    told = getdoc(partition)
    for name, planner in PLANNERS.items():
        assert f'- "{name}"' in told
        assert all(f"`{option.name}" in told for option in fields(planner)), name
    assert all(f'"{name}"' in told for name in SCHEDULES)
