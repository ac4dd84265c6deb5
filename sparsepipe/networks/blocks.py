"""A builder of networks: names layers, tracks channels and tensor strides, and adds blocks that networks share."""

from typing import Any

from .rows import INPUT, Row, scaled


class Table:
    """Collects the rows of a network. Methods add rows after the last one, or those named; they return the new last."""

    def __init__(self, in_channels: int, **norm: float) -> None:
        """`norm`: arguments of every batch norm beside its channels."""
        self.rows: list[Row] = []
        self.norm: dict[str, Any] = dict(norm)
        self.channels: dict[str, int] = {INPUT: in_channels}  # of each tensor
        self.last = INPUT

    def add(self, id: str, kind: str, *after: str, output_channels: int | None = None, **args: object) -> str:
        """Add a row after the given tensors, with its arguments. Output channels default to its first input's."""
        inputs = after or (self.last,)
        self.rows.append(Row(id, kind, inputs, args))
        self.channels[id] = self.channels[inputs[0]] if output_channels is None else output_channels
        self.last = id
        return id

    def convolution(
        self, id: str, *after: str, channels: int, kind: str = "convolution", bias: bool = False, **args: object
    ) -> str:
        """Add a convolution of any kind, its input channels those of the tensor it follows."""
        in_channels = self.channels[(after or (self.last,))[0]]
        args = {"in_channels": in_channels, "out_channels": channels, **args, "bias": bias}
        return self.add(id, kind, *after, output_channels=channels, **args)

    def linear(self, id: str, *after: str, channels: int) -> str:
        """Add a linear layer, its input channels those of the tensor it follows."""
        in_channels = self.channels[(after or (self.last,))[0]]
        return self.add(id, "linear", *after, output_channels=channels, in_channels=in_channels, out_channels=channels)

    def normalised(self, tag: str, *after: str, relu: bool = True, **args: object) -> str:
        """Add a convolution, its batch norm and, unless told not to, a ReLU: conv<tag>, bn<tag>, relu<tag>."""
        self.convolution(f"conv{tag}", *after, **args)  # type: ignore[arg-type]
        self.add(f"bn{tag}", "batch_norm", channels=self.channels[self.last], **self.norm)
        return self.add(f"relu{tag}", "relu") if relu else self.last

    def basic_block(self, tag: str, *, channels: int, stride: int = 1) -> str:
        """Add two 3x3x3 convolutions around a shortcut (He et al., "Deep Residual Learning", figure 2)."""
        entry = self.last
        self.normalised(f"{tag}_1", channels=channels, kernel_size=3, stride=stride)
        branch = self.normalised(f"{tag}_2", channels=channels, kernel_size=3, stride=1, relu=False)
        return self._merge(tag, entry, branch, stride)

    def bottleneck(self, tag: str, *, channels: int, stride: int = 1) -> str:
        """Add a 1-3-1 bottleneck, four times wider at its end, around a shortcut (He et al., figure 5)."""
        entry = self.last
        self.normalised(f"{tag}_1", channels=channels, kernel_size=1, stride=1)
        self.normalised(f"{tag}_2", channels=channels, kernel_size=3, stride=stride)
        branch = self.normalised(f"{tag}_3", channels=4 * channels, kernel_size=1, stride=1, relu=False)
        return self._merge(tag, entry, branch, stride)

    def classifier(self, num_classes: int, *, width: float = 1.0) -> str:
        """Add the three linear layers by which Pointcept classifies samples, the first two with norm and dropout."""
        for number, channels in enumerate((256, 128), start=1):
            self.linear(f"class{number}_linear", channels=scaled(channels, width))
            self.add(f"class{number}_norm", "batch_norm", channels=self.channels[self.last])
            self.add(f"class{number}_relu", "relu")
            self.add(f"class{number}_dropout", "dropout", probability=0.5)
        return self.linear("fc", channels=num_classes)

    def _merge(self, tag: str, entry: str, branch: str, stride: int) -> str:
        channels = self.channels[branch]
        if stride != 1 or self.channels[entry] != channels:
            entry = self.normalised(f"{tag}_short", entry, channels=channels, kernel_size=1, stride=stride, relu=False)
        self.add(f"add{tag}", "add", branch, entry)
        return self.add(f"relu{tag}", "relu")
