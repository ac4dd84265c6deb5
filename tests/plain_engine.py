"""What boundaries of dense networks need of an engine: a tensor is its own feature."""

from sparsepipe.engines.base import Feature, Parts


class PlainEngine:
    name = "plain"

    def split(self, tensors):
        return Parts((), {name: Feature(tensor, None) for name, tensor in tensors.items()})

    def join(self, parts):
        return {name: feature.rows for name, feature in parts.features.items()}

    def features(self, tensor):
        return tensor
