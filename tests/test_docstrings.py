"""What `Link?` and `partition?` show in a notebook: units, and every choice there is."""

from dataclasses import fields
from inspect import getdoc, signature

from scripts.settings import PAGE, page
from sparsepipe import SCHEDULES, Cluster, DeviceType, Link, Node, RunConfig, launch, partition, profile_model
from sparsepipe.engines import ENGINES
from sparsepipe.launching import LAUNCHERS
from sparsepipe.launching import launch as launch_alone
from sparsepipe.monitoring.variants import VARIANTS
from sparsepipe.planning import PLANNERS
from sparsepipe.runtime.config import DEVICES
from sparsepipe.util.io.settings import rows
from sparsepipe.values.replication import RULES
from sparsepipe.values.stragglers import KINDS


def test_a_link_says_its_units():
    assert "bytes per second" in getdoc(Link) and "seconds" in getdoc(Link)
    assert "bytes" in getdoc(DeviceType) and "address" in getdoc(Node) and "memory_bytes" in getdoc(Cluster.uniform)


def test_partition_lists_planners_their_options_and_schedules():
    told = getdoc(partition)
    for name, planner in PLANNERS.items():
        assert f'- "{name}"' in told
        assert all(f"`{option.name}" in told for option in fields(planner)), name
    assert all(f'"{name}"' in told for name in SCHEDULES)


def test_launch_lists_every_keyword_of_every_launcher_and_its_choices():
    told = getdoc(launch)
    taken = [launch, launch_alone, *(launcher().launch for launcher in LAUNCHERS.values())]
    named = [one for each in taken for one in signature(each).parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert {"replan", "port", "ray_address"} <= {one.name for one in named}
    assert [one.name for one in named if f" {one.name}: " not in told] == []
    assert all(f'"{name}"' in told for name in (*VARIANTS, *LAUNCHERS))
    assert all(f'"{name}"' in told or f'"{name}:' in told for name in (*RULES, *KINDS))
    assert "seconds" in told


def test_settings_and_profiles_say_units_and_choices():
    told = getdoc(RunConfig)
    for name, row in rows(RunConfig).items():
        assert f"- `{name}`: " in told and f"; {row.kind}" in " ".join(told.split()), name
    assert "longest side" in told and "samples per minibatch" in told and "in seconds" in told
    of_profiles = getdoc(profile_model)
    assert "longest side" in of_profiles
    for text in (told, of_profiles):
        assert all(f'"{name}"' in text for name in (*ENGINES, *DEVICES))
    for name in signature(profile_model).parameters:
        assert f" {name}: " in of_profiles, name


def test_the_page_of_settings_is_that_of_their_tables():
    assert PAGE.read_text() == page(), "python scripts/settings.py"
