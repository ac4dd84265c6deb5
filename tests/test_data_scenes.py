"""Scenes: crops in training and evaluation, votes back to points, views, mixing, augmentations by name."""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from coded import raises
from hypothesis import given
from hypothesis import settings as drawn
from hypothesis import strategies as st
from scene_parts import GlooThreads, in_threads

from sparsepipe import data
from sparsepipe.data import AUGMENTATIONS, Augmentation
from sparsepipe.data.augmentation import named_augmentation, turned_about_z
from sparsepipe.data.formats import Cloud
from sparsepipe.data.predicted_points import PointVotes, joined
from sparsepipe.networks.losses.metrics import Measures
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.workloads.learning import composed
from sparsepipe.runtime.workloads.opening import check_settings
from sparsepipe.runtime.workloads.resolved import resolve


def scenes(root: Path, *, metric: bool = True, counts: tuple[int, ...] = (150, 200, 120, 180)) -> Path:
    """Write rooms of 6 m x 4 m x 3 m with colours: two for training, two for the test."""
    draw = np.random.default_rng(0)
    for number, (split, count) in enumerate(zip(("train", "train", "test", "test"), counts, strict=True)):
        points = draw.uniform(0, (6, 4, 3), (count, 3)) + 100 * number
        rows = np.column_stack([points, draw.integers(0, 256, (count, 3)), np.arange(count) % 3])
        (root / "room" / split).mkdir(parents=True, exist_ok=True)
        header = "x y z red green blue label"
        np.savetxt(root / "room" / split / f"{number}.txt", rows, fmt="%.6f", header=header, comments="")
    marker = {"metric": metric, "parts": ["floor", "wall", "chair"], "columns": {}}
    (root / "dataset.json").write_text(json.dumps(marker | {"columns": {"x": "x"}}))
    return root


def opened(root: Path, split: str = "test", **options) -> data.VoxelDataset:
    options = {"voxel_size": 0.1, "task": "segmentation", "cache": "off", "features": "colours"} | options
    return data.load(root, split=split, **options)


def predicted(dataset: data.VoxelDataset, seed: int = 1) -> dict[str, np.ndarray]:
    """Predictions of a network whose outputs are drawn."""
    counts = dataset.voxel_counts()
    outputs = np.random.default_rng(seed).normal(size=(counts.sum(), 3))
    return joined([dataset.address(index) for index in range(len(dataset))]) | {
        "name": np.array([dataset.name(index) for index in range(len(dataset))]),
        "sample": np.repeat(np.arange(len(dataset)), counts),
        "outputs": outputs,
        "predictions": outputs.argmax(axis=1),
    }


@pytest.mark.parametrize("crop", ["cuboid:2,overlap=0.5", "column:3", "sphere:1.5"])
def test_votes_of_crops_are_those_of_a_loop_over_points(tmp_path: Path, crop: str) -> None:
    dataset = opened(scenes(tmp_path), crop=crop)
    found = predicted(dataset)
    assert (
        len(dataset) > 4
        and dataset.name(0) == dataset.name(1)
        and set(found["name"]) == set(data.to_points(found, tmp_path))
    )
    for name, classes in data.to_points(found, tmp_path).items():
        votes = np.zeros((len(classes), 3))
        for sample in np.flatnonzero(found["name"] == name):
            for point, row in enumerate(found["point_row"][slice(*found["point_offsets"][sample : sample + 2])]):
                if row >= 0:
                    shares = np.exp(found["outputs"][row])
                    votes[point] += shares / shares.sum()
        assert (votes.sum(axis=1) > 0).all(), "every point is in a crop"
        assert np.array_equal(classes, votes.argmax(axis=1))


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_metric_of_points_is_that_of_their_votes_however_crops_are_dealt(tmp_path: Path, ranks: int) -> None:
    dataset = opened(scenes(tmp_path), crop="cuboid:2,overlap=0.5", num_points=30)
    found = predicted(dataset)
    found["outputs"] = found["outputs"].astype(np.float32)
    outputs, samples = torch.from_numpy(found["outputs"]), torch.from_numpy(found["sample"])

    def work(group: GlooThreads) -> dict[str, float | None]:
        split = opened(tmp_path, crop="cuboid:2,overlap=0.5", num_points=30)
        measures = Measures(["point_mean_iou"], PointVotes(split))
        for pair in np.split(np.arange(len(dataset)), range(2, len(dataset), 2))[group.part :: ranks]:
            of_pair = torch.isin(samples, torch.from_numpy(pair))
            measures.votes.add(outputs[of_pair], samples[of_pair])
        assert ranks > 1 or not measures.votes._outputs, "scenes that are whole are not kept"
        measures.gather(rank=group.part, world_size=ranks, add_up=group.sum)
        return measures.report()

    of_ranks = in_threads(ranks, work)
    counts = np.zeros((3, 3))
    for classes in data.to_points(found, tmp_path).values():
        np.add.at(counts, (np.arange(len(classes)) % 3, classes), 1)
    ious = counts.diagonal() / (counts.sum(axis=0) + counts.sum(axis=1) - counts.diagonal())
    assert all(report == of_ranks[0] for report in of_ranks)
    assert of_ranks[0] == {"point_mean_iou": pytest.approx(ious.mean()), "point_iou_classes": 3}
    with raises("metric.output_malformed", "point_mean_iou"):
        PointVotes(dataset).add(outputs[:, :2], samples)
    objects = data.make_shapes(tmp_path / "objects", num_train=1, num_test=1, families=["box"])
    config = RunConfig("minkvgg11bn-narrow", str(objects), voxel_size=0.2, metrics=("point_miou",), validate=True)
    with raises("metric.not_of_points"):
        check_settings(resolve(config))


def test_crops_of_an_evaluation_hold_the_voxels_of_their_points(tmp_path: Path) -> None:
    whole, parts = opened(scenes(tmp_path)), opened(tmp_path, crop="cuboid:2")
    for name in {whole.name(index) for index in range(len(whole))}:
        (index,) = (k for k in range(len(whole)) if whole.name(k) == name)
        together = {
            tuple(voxel)
            for k in range(len(parts))
            if parts.name(k) == name
            for voxel in parts.sample(k).coordinates.tolist()
        }
        assert together == set(map(tuple, whole.sample(index).coordinates.tolist()))
    cached = opened(tmp_path, crop="cuboid:2", cache=tmp_path / "cache")
    again = opened(tmp_path, crop="cuboid:2", cache=tmp_path / "cache")
    assert len(cached) == len(again) == len(parts) and np.array_equal(cached.voxel_counts(), parts.voxel_counts())
    assert all(torch.equal(again.sample(k).coordinates, parts.sample(k).coordinates) for k in range(len(parts)))


def test_crops_in_training_change_with_the_epoch_alone(tmp_path: Path) -> None:
    one, two = (opened(scenes(tmp_path), "train", crop="sphere:1.5") for _ in range(2))
    assert len(one) == 2
    epochs = [one.sample(0, epoch=epoch) for epoch in range(4)]
    assert torch.equal(epochs[3].coordinates, two.sample(0, epoch=3).coordinates)
    assert len({tuple(map(tuple, sample.coordinates.tolist())) for sample in epochs}) == 4
    assert all(np.ptp(sample.coordinates.numpy(), axis=0).max() <= 30 for sample in epochs)
    fewer = opened(tmp_path, "train", crop="column:3", num_points=10)
    assert len(fewer.sample(1, epoch=1)) <= 10


def test_crops_of_an_evaluation_cover_scenes_that_are_augmented(tmp_path: Path) -> None:
    """They were random ones: an augmentation made them those of training."""
    plain, moved = opened(scenes(tmp_path), crop="cuboid:2"), opened(tmp_path, crop="cuboid:2", augmentation="flip")
    assert len(moved) == len(plain) > 2 and np.array_equal(moved.voxel_counts() > 0, plain.voxel_counts() > 0)
    again = opened(tmp_path, crop="cuboid:2", augmentation="flip")
    for index in range(len(moved)):
        points = [each.points(index) for each in (plain, moved)]
        assert np.array_equal(*points), "of the same cells"
        assert torch.equal(moved.sample(index, epoch=2).coordinates, again.sample(index, epoch=2).coordinates)
        assert len(moved.sample(index).coordinates) <= len(points[0])
    with raises("dataset.no_files"):
        len(data.VoxelDataset(plain.folder, "test", recipe=plain.recipe, files=[], cache="off"))


@pytest.mark.parametrize("changes", [{"crop": "sphere:1.5"}, {"augmentation": "mix3d"}])
def test_no_budget_is_kept_by_samples_of_another_size_in_each_epoch(tmp_path: Path, changes: dict) -> None:
    config = RunConfig("minkunet14a", str(scenes(tmp_path)), batch_voxels=400, **changes)
    with raises("order.sizes_change"):
        composed(config, opened(tmp_path, "train", **changes), epoch=0)
    assert composed(config, opened(tmp_path, "test"), epoch=0)


@pytest.mark.parametrize("metric", [True, False])
def test_views_are_turned_copies_that_vote_on_the_same_points(tmp_path: Path, metric: bool) -> None:
    single = opened(scenes(tmp_path, metric=metric))
    turned = single.with_views(4)
    assert len(turned) == 4 * len(single) and turned.labels if not metric else len(turned) == 8
    assert torch.equal(turned.sample(0).coordinates, single.sample(0).coordinates), "the first is as it was"
    assert not torch.equal(turned.sample(1).coordinates, single.sample(0).coordinates)
    found = predicted(turned)
    cloud = single.folder.read(single.files[0]).points
    for sample in range(4):
        rows = found["point_row"][slice(*found["point_offsets"][sample : sample + 2])]
        middles = found["origin"][sample] + (found["coordinates"][rows] + 0.5) * found["edge"][sample]
        assert (np.abs(middles - cloud).max(axis=1) <= 2 * found["edge"][sample]).all(), "in the units of the file"
    assert {len(classes) for classes in data.to_points(found, tmp_path).values()} == {120, 180}


def test_views_of_objects_in_one_file_are_of_each(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        with h5py.File(tmp_path / f"ply_data_{split}0.h5", "w") as file:
            file["data"], file["label"] = draw.random((4, 64, 3), dtype=np.float32), np.array([[0], [1]] * 2, np.uint8)
        (tmp_path / f"{split}_files.txt").write_text(f"ply_data_{split}0.h5\n")
    (tmp_path / "shape_names.txt").write_text("a\nb\n")
    single = data.load(tmp_path, split="test", voxel_size=0.1, cache="off")
    turned = single.with_views(2)
    assert all(torch.equal(turned.sample(2 * k).coordinates, single.sample(k).coordinates) for k in range(4))


def test_votes_of_views_of_samples() -> None:
    rows = {"name": np.array(["a", "b", "a"]), "sample": np.arange(3)}
    outputs = np.array([[0.0, 0.5, 0.0], [1.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    assert data.vote(rows | {"outputs": outputs}) == {"a": 0, "b": 0}
    with raises("predictions.not_of_samples"):
        data.vote(rows | {"outputs": outputs[:2]})


def test_a_mixed_scene_is_two_scenes_one_on_the_other(tmp_path: Path) -> None:
    plain, mixed = opened(scenes(tmp_path), "train"), opened(tmp_path, "train", augmentation=Augmentation(mix=1.0))
    sample = mixed.sample(0, epoch=2)
    assert torch.equal(
        sample.coordinates, opened(tmp_path, "train", augmentation=Augmentation(mix=1.0)).sample(0, epoch=2).coordinates
    )
    own = set(map(tuple, plain.sample(0).coordinates.tolist()))
    there = set(map(tuple, sample.coordinates.tolist()))
    assert own < there or len(there) == len(own), "its own voxels stay"
    middle = np.ptp(sample.coordinates.numpy(), axis=0)
    assert (middle <= 10 * np.array([6, 4, 3]) + 2).all(), "the other one is brought on top"
    counts = [len(mixed.sample(0, epoch=epoch)) for epoch in range(6)]
    assert len(set(counts)) > 1, "another partner in another epoch"
    never = opened(tmp_path, "train", augmentation=Augmentation(rotation=0)).sample(0, epoch=2)
    assert torch.equal(never.coordinates, plain.sample(0).coordinates)


def test_objects_that_are_mixed_keep_to_the_cube(tmp_path: Path) -> None:
    scenes(tmp_path, metric=False)
    for name, sides in (("0", (9, 1, 1)), ("1", (1, 9, 1))):
        rows = np.random.default_rng(0).uniform(0, [*sides, 1], (99, 4)).round(1)
        rows[:, 3] = 0
        np.savetxt(tmp_path / "room" / "train" / f"{name}.txt", rows, header="x y z label", comments="")
    changes = Augmentation(in_cube=True, mix=1.0)
    mixed = opened(tmp_path, "train", augmentation=changes, features="occupancy")
    sizes = [mixed.sample(0, epoch=epoch).coordinates for epoch in range(4)]
    assert all(int(voxels.min()) >= 0 and int(voxels.max()) <= 10 for voxels in sizes)


def test_settings_that_do_not_fit_the_data_are_refused(tmp_path: Path) -> None:
    scenes(tmp_path, metric=False)
    with raises("crop.of_objects"):
        opened(tmp_path, crop="sphere:1")
    with raises("augmentation.mix_of_samples"):
        opened(tmp_path, "train", task="classification", augmentation="rotate-z+mix3d")
    with raises("number.below_least"):
        opened(tmp_path).with_views(0)


def test_digests_of_data_without_the_new_settings_are_those_of_before() -> None:
    facts = data.recipe.Recipe(0.1, augmentation=AUGMENTATIONS["scans"]).facts()
    assert not {"crop", "views"} & facts.keys() and "flip" not in facts["augmentation"]
    assert Augmentation.from_json(AUGMENTATIONS["flip"].to_json()) == AUGMENTATIONS["flip"]


@drawn(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from(sorted(AUGMENTATIONS)), st.sampled_from(sorted(AUGMENTATIONS)))
def test_names_joined_by_plus_do_what_both_do(seed: int, first: str, second: str) -> None:
    joined_names = named_augmentation(f"{first}+{second}")
    for name in Augmentation.__dataclass_fields__:
        values = [getattr(each, name) for each in (AUGMENTATIONS[second], AUGMENTATIONS[first], Augmentation())]
        changed = [value for value in values if value != values[2]]
        assert getattr(joined_names, name) == (changed[0] if changed else values[2])
    draw = np.random.default_rng(seed)
    colours = draw.integers(0, 256, (20, 3)).astype(np.float32)
    cloud = Cloud(draw.uniform(0, 1, (20, 3)), colours, ("red", "green", "blue"), np.arange(20))
    changed = joined_names.apply(cloud, seed=seed)
    assert changed.attributes.min() >= 0 and changed.attributes.max() <= 255
    if not {"colour-jitter", "colour-drop"} & {first, second}:
        assert np.array_equal(changed.attributes, colours[changed.labels])


def test_flips_mirror_and_colours_drop_as_often_as_asked() -> None:
    points = np.random.default_rng(0).uniform(0, 1, (30, 3))
    colours = np.full((30, 3), 100, dtype=np.float32)
    cloud = Cloud(points, colours, ("red", "green", "blue"))
    flipped = [AUGMENTATIONS["flip"].apply(cloud, seed=seed).points for seed in range(200)]
    mirrored = [
        (np.abs(points[:, :2] + other[:, :2] - points.min(0)[:2] - points.max(0)[:2]) < 1e-9).all(0)
        for other in flipped
    ]
    assert (np.abs(np.mean(mirrored, axis=0) - 0.5) < 0.12).all() and all(
        np.allclose(o[:, 2], points[:, 2]) for o in flipped
    )
    dropped = [not AUGMENTATIONS["colour-drop"].apply(cloud, seed=seed).attributes.any() for seed in range(300)]
    assert 0.12 < np.mean(dropped) < 0.28
    noise = Augmentation(colour_jitter=0.1).apply(cloud, seed=0).attributes - 100
    assert 18 < noise.std() < 33
    normals = replace(cloud, attributes=np.tile(np.float32([1, 0, 0]), (30, 1)), names=("nx", "ny", "nz"))
    assert np.allclose(turned_about_z(normals, 90).attributes, [0, 1, 0], atol=1e-6)
    with raises("augmentation.unknown", "colour-burn"):
        named_augmentation("flip+colour-burn")
    with raises("augmentation.out_of_range"):
        Augmentation(flip=1.5)
