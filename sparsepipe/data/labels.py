"""What labels are for: the tasks, and the class of what has no label."""

CLASSIFICATION, SEGMENTATION = TASKS = ("classification", "segmentation")  # one label a sample; one a point, or voxel
IGNORED = -100  # a voxel without a class: the `ignore_index` of torch's cross_entropy, unless told otherwise
