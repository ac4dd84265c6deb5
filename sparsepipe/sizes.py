"""Units of a minibatch's size (voxels, tokens, samples): the number that costs, memory and payloads grow with."""

SIZE_UNITS = (
    "voxels",
    "tokens",
    "samples",
)  # active voxels at a sparse network's input, tokens of a text


def size_words(unit: str) -> str:
    """How figures and messages name a unit of size: voxels are the active ones, those that hold points."""
    return f"active {unit}" if unit == "voxels" else unit
