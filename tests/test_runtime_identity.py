import pytest
from coded import raises

from sparsepipe.runtime.processes.identity import Identity

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RESTART_COUNT": "5",
}


def test_alone_a_process_is_the_only_rank():
    assert Identity.from_environment({}) == Identity(0, 1, local_rank=0, local_world_size=1, store=None)


def test_torchruns_environment_is_read():
    found = Identity.from_environment({**TORCHRUN, "SPARSEPIPE_LAUNCH": "7-8", "GLOO_SOCKET_IFNAME": "lo,eth0"})
    assert found == Identity(3, 4, local_rank=1, local_world_size=2, launch="7-8", attempt=5, interface="lo")
    assert found.address == "127.0.0.1"


def test_where_there_is_one_host_its_ranks_are_those_of_the_job():
    found = Identity.from_environment({"RANK": "1", "WORLD_SIZE": "2"})
    assert (found.local_rank, found.local_world_size) == (1, 2)


def test_ranks_meet_through_a_file_unless_the_launcher_has_a_store():
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4567"}
    assert Identity.from_environment(where).store is None
    found = Identity.from_environment({**where, "SPARSEPIPE_RENDEZVOUS": "tcp"})
    assert found.store == ("127.0.0.1", 4567) and found.address == "127.0.0.1"


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"])
@pytest.mark.parametrize("told", ["", "one", "-1", "1.5", "²"])
def test_what_is_no_number_is_named(name, told):
    with raises("environment.not_whole", name, told):
        Identity.from_environment({**TORCHRUN, name: told})
