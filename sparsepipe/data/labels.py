"""The label of what has none."""

IGNORED = -100  # a voxel without a class: what torch's cross_entropy leaves out unless told otherwise
