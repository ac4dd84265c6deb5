"""Where MinkowskiEngine itself is wrong or undefined: its own layers, without ours around them, and what ours do.

A claim that no longer holds, with another version of the library, is no longer a reason for ours to differ.
"""

import pytest
import torch
from coded import raises
from engine_clouds import random_batch

from sparsepipe.data import PointBatch
from sparsepipe.engines import engine
from sparsepipe.networks import INPUT, Row

# Its layers instantiate autograd functions, which torch deprecates and still allows.
pytestmark = pytest.mark.filterwarnings("ignore:<class 'Minkowski:DeprecationWarning")

NATIVE = engine("native")
LINE = torch.tensor([[0, 0], [0, 1], [0, 2]], dtype=torch.int32)  # three voxels in one dimension
LONE = torch.tensor([[0, 0, 0, 0], [1, 3, 3, 3]], dtype=torch.int32)  # one voxel in each of two samples


@pytest.fixture(scope="module")
def library(minkowski):
    import MinkowskiEngine

    return MinkowskiEngine


def sparse(library, coordinates, *rows):
    return library.SparseTensor(torch.tensor(rows, dtype=torch.float32), coordinates)


@pytest.mark.parametrize("name", ["GlobalMaxPooling", "GlobalAvgPooling", "GlobalSumPooling"])
def test_it_refuses_to_pool_samples_of_one_voxel_each(minkowski, library, name):
    with pytest.raises(RuntimeError, match="Invalid out_coordinate_map"):
        getattr(library, f"Minkowski{name}")()(sparse(library, LONE, [1.0], [2.0]))
    kind = {"Max": "global_max_pool", "Avg": "global_average_pool", "Sum": "global_sum_pool"}[name[6:9]]
    batch = PointBatch(LONE, torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
    for chosen in (NATIVE, minkowski):
        assert chosen.layer(Row("p", kind, (INPUT,)))(chosen.tensor(batch)).tolist() == [[1.0], [2.0]]


def test_it_refuses_the_instance_norm_of_samples_of_one_voxel_each(minkowski, library):
    with pytest.raises(RuntimeError, match="Invalid out_coordinate_map"):
        library.MinkowskiInstanceNorm(1)(sparse(library, LONE, [1.0], [2.0]))
    batch = PointBatch(LONE, torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
    for chosen in (NATIVE, minkowski):
        norm = chosen.layer(Row("n", "instance_norm", (INPUT,), {"channels": 1}))
        assert chosen.features(norm(chosen.tensor(batch))).tolist() == [[0.0], [0.0]]


def test_its_union_of_the_same_voxels_is_on_other_rows_than_its_inputs(minkowski, library):
    """It inserts the voxels anew, under another key: what was added no longer meets what it was made of."""
    x = minkowski.tensor(random_batch())
    union = library.MinkowskiUnion()(x, x)
    assert len(union) == len(x) and union.coordinate_map_key != x.coordinate_map_key
    with raises("tensor.strides_differ"):
        minkowski.layer(Row("a", "add", (INPUT,)))(union, x)
    for chosen in (NATIVE, minkowski):
        x = chosen.tensor(random_batch())
        twice = chosen.layer(Row("u", "union_add", (INPUT,)))(x, x)
        thrice = chosen.layer(Row("a", "add", (INPUT,)))(twice, x)
        assert torch.equal(chosen.features(thrice), 3 * chosen.features(x))


def test_its_transposed_pool_adds_up_where_its_documentation_divides(minkowski, library):
    """The middle of three voxels lies under both kernels of size 3 at stride 2."""
    assert "divide it by the number of non zero elements" in library.MinkowskiPoolingTranspose.__doc__
    shape = {"kernel_size": 3, "stride": 2, "dimension": 1}
    fine = sparse(library, LINE, [1.0], [2.0], [4.0])
    coarse = library.MinkowskiSumPooling(**shape)(fine)
    assert sorted(coarse.F.flatten().tolist()) == [3.0, 6.0]
    back = library.MinkowskiPoolingTranspose(**shape)(coarse, fine.coordinate_map_key)
    assert back.F.flatten().tolist() == [3.0, 3.0 + 6.0, 6.0]
    batch = PointBatch(LINE, fine.F, torch.tensor([0]))
    for kind, expected in (("unpool", [3.0, 9.0, 6.0]), ("average_unpool", [3.0, 4.5, 6.0])):
        x = NATIVE.tensor(batch)
        pooled = NATIVE.layer(Row("p", "sum_pool", (INPUT,), shape))(x)
        assert NATIVE.layer(Row("u", kind, (INPUT,), shape))(pooled, x).features.flatten().tolist() == expected


def test_its_maximum_of_no_voxel_is_the_lowest_number_there_is(library):
    """A kernel of 2 at stride 3 leaves the third voxel out. Ours is 0: see test_engines_layers."""
    coordinates = torch.tensor([[0, 2], [0, 3]], dtype=torch.int32)
    pool = library.MinkowskiMaxPooling(kernel_size=2, stride=3, dimension=1)
    pooled = pool(sparse(library, coordinates, [5.0], [-7.0]))
    assert sorted(pooled.F.flatten().tolist()) == [torch.finfo(torch.float32).min, -7.0]


def test_its_convolution_of_one_offset_forgets_its_stride_in_one_dimension(library):
    """It asks a list of one stride whether all are 1, and takes the number for the answer. Native strides."""
    shape = {"kernel_size": 1, "stride": 2, "dimension": 1}
    theirs = library.MinkowskiConvolution(1, 1, **shape)
    output = theirs(sparse(library, LINE, [1.0], [2.0], [4.0]))
    assert output.tensor_stride == [1] and len(output) == 3 and theirs.kernel.dim() == 2
    layer = NATIVE.layer(Row("c", "convolution", (INPUT,), shape | {"in_channels": 1, "out_channels": 1}))
    ours = layer(NATIVE.tensor(PointBatch(LINE, torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0]))))
    assert ours.tensor_stride == (2,) and ours.coordinates[:, 1].tolist() == [0, 2] and layer.kernel.dim() == 3


def test_its_pool_over_samples_is_right_behind_a_cut_where_voxels_are_made_of_a_field(minkowski, library):
    """On the voxels of a field itself its pool can mix the samples up, as the order of its threads falls."""
    draw = torch.Generator().manual_seed(1)
    samples = torch.arange(2.0).repeat_interleave(35)[:, None]
    places = torch.cat([samples, 5 * torch.rand(70, 3, generator=draw)], dim=1)
    mode = library.SparseTensorQuantizationMode.RANDOM_SUBSAMPLE
    voxels = library.TensorField(torch.rand(70, 3, generator=draw), places, quantization_mode=mode).sparse()
    pool = library.MinkowskiGlobalMaxPooling()
    again = pool(minkowski.join(minkowski.split({"x": voxels}))["x"])
    maxima = torch.stack([voxels.F[voxels.C[:, 0] == k].amax(dim=0) for k in (0, 1)])
    assert torch.equal(again.F, maxima) and again.C[:, 0].tolist() == [0, 1]
