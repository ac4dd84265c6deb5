import pytest
from coded import raises

from sparsepipe import GraphText, Profile

NODE = (
    "{id} -- Conv(1, bias=None) -- forward_compute_time={f}, "
    "backward_compute_time=2.000, activation_size={a}, parameter_size=8.000"
)


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_published_profiles_survive_the_round_trip(shared_reference, tmp_path):
    names = ("minkvgg/minkvgg_v0.02_b64_RTX", "image_classification/vgg16", "image_classification/densenet121")
    paths = [shared_reference / "profiles" / name / "graph.txt" for name in names]
    for path in paths:
        text = GraphText.load(path)
        assert GraphText.load(text.save(tmp_path / "graph.txt")) == text
        profile = Profile.load(path)
        assert Profile.load(profile.save(tmp_path / "profile.json")) == profile
        again = profile.to_graph_text()
        assert again.nodes == text.nodes
        assert set(again.edges) == set(text.edges)


def test_lists_and_stages_are_kept(tmp_path):
    path = write(tmp_path / "g.txt", NODE.format(id="n1", f=1, a="[3.0; 4.5]") + " -- stage_id=2")
    text = GraphText.load(path)
    assert text.nodes[0].activation_bytes == (3.0, 4.5)
    assert text.nodes[0].stage_id == 2
    profile = Profile.from_graph_text(text)
    assert profile.cost(0, "device").output_bytes == 7.5
    assert profile.to_graph_text() == text


def test_milliseconds_become_seconds(tmp_path):
    profile = Profile.load(write(tmp_path / "g.txt", NODE.format(id="n1", f="1.500", a=0)))
    assert profile.time([0], "device") == (0.0015, 0.002)


@pytest.mark.parametrize(
    ("lines", "line", "error"),
    [
        ([NODE.format(id="a", f="-1", a=0)], 1, ("number.malformed", "forward_compute_time", "-1")),
        ([NODE.format(id="a", f="nan", a=0)], 1, ("number.malformed", "forward_compute_time", "nan")),
        ([NODE.format(id="a", f="1.2.3", a=0)], 1, ("graph_text.not_a_number",)),
        ([NODE.format(id="a", f=1, a="[1.0; x]")], 1, ("graph_text.not_a_number", "activation_size", "x")),
        ([NODE.format(id="a", f=1, a=0)] * 2, 2, ("graph_text.node_twice", "a")),
        ([NODE.format(id="a", f=1, a=0), "\ta -- b"], 2, ("graph_text.node_unknown", "b")),
        ([NODE.format(id="a", f=1, a=0), "\ta"], 2, ("graph_text.edge_malformed",)),
        ([NODE.format(id="a", f=1, a=0), "", "nonsense"], 3, ("graph_text.parts", "1")),
        (["a -- Conv -- forward_compute_time=1"], 1, ("graph_text.field_missing", "backward_compute_time")),
        ([NODE.format(id="a", f=1, a=0) + " -- stage_id=x"], 1, ("graph_text.no_stage",)),
    ],
)
def test_bad_lines_are_named(tmp_path, lines, line, error):
    path = write(tmp_path / "g.txt", *lines)
    with raises(*error) as caught:
        GraphText.load(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_a_cycle_and_an_empty_file_are_named(tmp_path):
    a, b = (NODE.format(id=id, f=1, a=0) for id in "ab")
    with raises("graph.cycle", "g.txt"):
        GraphText.load(write(tmp_path / "g.txt", a, b, "\ta -- b", "\tb -- a"))
    with raises("graph.empty", "empty.txt"):
        GraphText.load(write(tmp_path / "empty.txt"))


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    """With one, the first layer was another than the one that its edges name."""
    plain, marked = tmp_path / "plain.txt", tmp_path / "marked.txt"
    numbers = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=4.0"
    text = f"node1 -- Conv -- {numbers}\nnode2 -- Linear -- {numbers}\n\tnode1 -- node2\n"
    plain.write_text(text)
    marked.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert GraphText.load(marked) == GraphText.load(plain)


@pytest.mark.parametrize("sizes", ["[3.0; 4.5]", "[3.0, 4.5]", "[3.0;4.5]", "[ 3.0 ,4.5 ]"])
def test_several_sizes_are_read_however_they_are_parted(tmp_path, sizes):
    """Python's own lists, and lists without blanks, were refused, or hid the fields behind them."""
    path = write(tmp_path / "g.txt", NODE.format(id="n1", f=1, a=sizes))
    assert GraphText.load(path).nodes[0].activation_bytes == (3.0, 4.5)


@pytest.mark.parametrize("indent", ["\t", "    ", " ", "  \t", ""])
def test_tabs_may_be_blanks_and_blanks_tabs(tmp_path, indent):
    """An edge that an editor indented with blanks was a node of two parts."""
    nodes = [NODE.format(id=id, f=1, a=0) for id in ("a", "b")]
    text = GraphText.load(write(tmp_path / "g.txt", *nodes, f"{indent}a -- b"))
    assert text.edges == (("a", "b"),)
    tabs = GraphText.load(write(tmp_path / "h.txt", nodes[0].replace(" -- ", "\t--\t"), nodes[1], f"{indent}a\t--\tb"))
    assert tabs == text
    assert GraphText.load(text.save(tmp_path / "i.txt")) == text
