"""Frames: they arrive as they were sent, whatever else is printed between their chunks."""

import ast
import os
import sys
import threading
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe.launching.probes import probe
from sparsepipe.runtime.wire import frames, handshake
from sparsepipe.runtime.wire.frames import _CHUNK, _MOST_CHUNK, MARK, MOST_PAYLOAD, FrameReader, FrameWriter, lengths

LARGE = os.urandom(3 * _MOST_CHUNK)
FRAMES = [
    ({"kind": "file", "name": "ü"}, b"\0\xff\n"),
    ({"kind": "alive"}, b""),
    ({"kind": "file", "name": "large"}, LARGE),
    ({"kind": "mark"}, MARK + b"[]" + MARK),
]


@contextmanager
def pipe():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", 0) as left, os.fdopen(writing, "wb", 0) as right:
        yield left, right


def chunks(*frames):
    """What a writer writes of frames, cut where it was written."""
    written = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: written.append(bytes(data)) or len(data))
        writer = FrameWriter(-1)
        for head, payload in frames:
            facts = dict(head)
            writer.send(facts.pop("kind"), payload, **facts)
    return written


def heard(said):
    """What a reader makes of bytes. They come from a file, as much at a time as it asks for."""
    descriptor = os.memfd_create("said")
    try:
        with open(descriptor, "r+b", closefd=False) as file:  # noqa: PTH123  # a descriptor
            file.write(said)
            file.seek(0)
            reader, found = FrameReader(descriptor), []
            while (frame := reader.read()) is not None:
                found.append(tuple(frame))
        return found
    finally:
        os.close(descriptor)


def test_frames_arrive_as_they_were_sent():
    written = chunks(*FRAMES)
    assert heard(b"".join(written)) == FRAMES and max(map(len, written)) <= 4096
    assert heard(b"".join(written)[:-3]) == FRAMES[:-1], "one that is cut short is none"
    largest = ({"kind": "file"}, os.urandom(MOST_PAYLOAD))
    assert heard(b"".join(chunks(largest))) == [largest]


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"You have new mail\n", MARK, MARK + b"\0" * 9]), max_size=9))
def test_what_others_print_between_chunks_is_passed_over(noise):
    said = b""
    for place, chunk in enumerate(chunks(*FRAMES)):
        said += (noise[place] if place < len(noise) else b"") + chunk
    assert heard(said + b"logout\n") == FRAMES


def test_a_part_that_is_lost_or_torn_is_refused():
    written = chunks(*FRAMES)
    for place in range(len(written) - 1):
        with pytest.raises(ValueError, match="lost"):
            heard(b"".join([*written[:place], *written[place + 1 :]]))
        torn = written[place][:20] + b"mail\n" + written[place][20:]
        with pytest.raises(ValueError, match="lost"):
            heard(b"".join([*written[:place], torn, *written[place + 1 :]]))


@given(st.binary(max_size=200))
def test_what_is_no_frame_is_refused_and_no_length_is_believed(said):
    def content(data):
        return _CHUNK.pack(MARK, 0, len(data), zlib.crc32(data)) + data

    for whole in (said, content(said), MARK + said):
        with suppress(ValueError):
            assert not heard(whole) or said
    with pytest.raises(ValueError, match="bytes"):
        heard(content(lengths(2**31, 0)))
    with pytest.raises(ValueError, match="JSON"):
        heard(content(lengths(2, 0) + b"[]"))
    with pytest.raises(ValueError, match="does not begin"):
        heard(content(b"spf2" + lengths(2, 0)[4:] + b"{}"))


def test_a_shell_that_prints_without_end_before_the_first_message_is_refused():
    with pytest.raises(ValueError, match="without end"):
        heard(b"y\n" * 2**20)
    written = chunks(*FRAMES)
    assert heard(written[0] + b"y\n" * 2**20 + b"".join(written[1:])) == FRAMES, "later it may: nothing is kept of it"


def test_a_reader_waits_as_long_as_it_is_asked_to():
    with pipe() as (left, right):
        reader = FrameReader(left.fileno())
        with pytest.raises(TimeoutError):
            reader.read(seconds=0.01)
        right.write(chunks(FRAMES[0])[0][:30])
        with pytest.raises(TimeoutError):
            reader.read(seconds=0.01)
        right.write(chunks(FRAMES[0])[0][30:])
        assert tuple(reader.read(seconds=60.0)) == FRAMES[0]


def test_threads_take_turns():
    with pipe() as (left, right):
        writer, reader = FrameWriter(right.fileno()), FrameReader(left.fileno())
        threads = [threading.Thread(target=writer.send, args=("file", LARGE), kwargs={"k": k}) for k in range(8)]
        for thread in threads:
            thread.start()
        found = [reader.read(seconds=60.0) for _ in threads]
        for thread in threads:
            thread.join()
    assert {frame.head["k"] for frame in found} == set(range(8)) and {frame.payload for frame in found} == {LARGE}


def test_a_host_that_is_gone_before_anything_was_sent_is_told_by_the_first_frame():
    """ssh ended at once, for a host that it did not know; the launcher failed with a broken pipe in place of why."""
    with pipe() as (left, right):
        left.close()
        with pytest.raises(BrokenPipeError):
            FrameWriter(right.fileno()).send("alive")


def test_hosts_without_this_package_can_run_the_files():
    """They are sent there, one behind the other: the standard library alone, no syntax that is newer than Python 3.7,
    and no name that two of them give."""
    given = []
    for module in (frames, handshake, probe):
        tree = ast.parse(Path(module.__file__).read_text(), feature_version=(3, 7))
        nodes = list(ast.walk(tree)) if module is not probe else tree.body
        imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names
        given += [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        given += [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    assert len(given) == len(set(given)) > 50
