"""Units of a minibatch's size (voxels, tokens, samples): the number that costs, memory and payloads grow with."""

# The first of them that a row of metrics has is its size: samples are in each.
SIZE_UNITS = (
    "voxels",
    "tokens",
    "samples",
)  # active voxels at a sparse network's input, tokens of a text


def size_words(unit: str) -> str:
    """Return a unit of size as figures and messages write it: "active voxels" are those that hold points."""
    return f"active {unit}" if unit == "voxels" else unit
