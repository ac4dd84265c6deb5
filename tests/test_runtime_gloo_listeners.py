"""Gloo's sockets: a thousand strangers ended a worker, for each used up a file; now none of them gets in."""

import socket

import pytest
import torch
import torch.distributed as dist

from sparsepipe.runtime.worker.gloo_listeners import _listening, gloo_connects

SOON = 0.3  # seconds: for what is to pass in vain


def listening():
    return {inode: one.getsockname()[:2] for inode, one in _listening()}


def refuses(address):
    try:
        socket.create_connection(address, SOON).close()
    except TimeoutError:
        return True
    return False


@pytest.fixture
def ours():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_once_groups_are_made_gloo_hears_nobody_and_others_are_heard(tmp_path, ours):
    own = listening()
    assert ours.getsockname() in own.values()
    with gloo_connects():
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
        during = listening()
        assert during.keys() > own.keys() and not any(map(refuses, during.values())), "gloo takes whoever comes"
    try:
        assert all(refuses(address) for inode, address in listening().items() if inode not in own)
        with gloo_connects():
            group = dist.new_group([0])
        assert all(refuses(address) for inode, address in listening().items() if inode not in own)
        assert not refuses(ours.getsockname())
        told = torch.ones(3)
        dist.all_reduce(told, group=group)
        assert told.tolist() == [1, 1, 1]
    finally:
        dist.destroy_process_group()
