"""Networks and data sets as a user writes them: named by path in the tests of runs, imported by every worker."""

from collections import OrderedDict

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

VOCABULARY, LENGTH, CLASSES = 17, 6, 4


class TiedWords(nn.Module):
    """A language model: its last layer shares the word table, a part is frozen, a mask is read late, a dict comes out.

    One block is used twice.
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(torch.randn(LENGTH, width) * 0.1)
        self.fixed = nn.Linear(width, width)
        self.fixed.requires_grad_(False)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.block = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(inplace=True), nn.Linear(2 * width, width))
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(dropout)
        self.out = nn.Linear(width, VOCABULARY, bias=False)
        self.out.weight = self.words.weight

    def forward(self, words: Tensor, *, mask: Tensor) -> dict[str, Tensor]:
        x = self.words(words) + self.place
        x = x + self.fixed(x)
        y, _ = self.attention(x, x, x, key_padding_mask=~mask)
        x = self.drop(x + y)
        x = x + self.block(x)
        x = self.norm(x + self.block(x)) * mask[..., None]
        return {"logits": self.out(x), "unused": x.mean()}


class Pictures(nn.Module):
    """Convolutions with batch norm, a shortcut over several layers, additions in place."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1, bias=False) for _ in range(2))
        self.head = nn.Linear(6, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = entry = functional.relu(self.stem(x), inplace=True)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolution(x))
            x += entry
            x = torch.relu_(x)
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Heads(nn.Module):
    """Three heads on one trunk, each of two layers: `heads_loss` reaches one always, one at times and one never."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.trunk = nn.Linear(64, 12)
        self.middle, self.aside, self.stray = (nn.Linear(12, 12) for _ in range(3))
        self.head, self.side, self.end = (nn.Linear(12, num_classes) for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = torch.tanh(self.trunk(x.flatten(1)))
        middle, aside, stray = torch.tanh(self.middle(x)), torch.tanh(self.aside(x)), torch.tanh(self.stray(x))
        return {"logits": self.head(middle), "side": self.side(aside), "end": self.end(stray)}


class Recurrent(nn.Module):
    """Two LSTMs, the state of the first begins the second."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.first, self.second = (nn.LSTM(width, width, batch_first=True) for _ in range(2))
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        x, state = self.first(self.words(words))
        y, _ = self.second(x, state)
        return self.out(y + x) * mask[..., None]


class Codes(nn.Module):
    """An autoencoder that returns its input too, filters with complex numbers, and has parts of a stage's own names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.network = nn.Linear(64, width)
        self.table = nn.Parameter(torch.randn(width // 2 + 1, dtype=torch.complex64))
        self.result = nn.Sequential(nn.Tanh(), nn.Linear(width, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        code = self.network(x.flatten(1))
        code = torch.fft.irfft(torch.fft.rfft(code) * self.table, n=code.shape[1])
        return self.result(code), x, code


class Observed(nn.Module):
    """An observer as quantization has it, whose buffer gets its size in the first forward."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.register_buffer("least", torch.tensor([]))

    def forward(self, x: Tensor) -> Tensor:
        least = x.detach().flatten(1).amin(0)
        if self.least.numel() == 0:
            self.least.resize_(least.shape)
            self.least.copy_(least)
        self.least.copy_(torch.minimum(self.least, least))
        return self.part(x)


def observed() -> nn.Module:
    return nn.Sequential(OrderedDict(first=Observed(nn.Flatten()), last=nn.Linear(64, 8), out=nn.Linear(8, 64)))


def codes(width: int = 8) -> nn.Module:
    return Codes(width)


def tied(width: int = 8, dropout: float = 0.0) -> nn.Module:
    return TiedWords(width, dropout)


def any_area(num_classes: int) -> nn.Module:
    """For pictures of any height and width."""
    layers = (nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes))


def pictures(num_classes: int) -> nn.Module:
    return Pictures(num_classes)


def heads(num_classes: int) -> nn.Module:
    return Heads(num_classes)


def recurrent(width: int = 8) -> nn.Module:
    return Recurrent(width)


def text() -> str:
    return "no module"


class Words(torch.utils.data.Dataset):
    """Random words; the target of each is the word before it. The last ones of some samples are masked."""

    def __init__(self, count: int, seed: int, mask_as: str) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.words = torch.randint(0, VOCABULARY, (count, LENGTH), generator=draw)
        self.lengths = torch.randint(2, LENGTH + 1, (count,), generator=draw)
        self.mask_as = mask_as
        self.loss = f"{__file__}:words_loss"

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> tuple:
        words, mask = self.words[index], torch.arange(LENGTH) < self.lengths[index]
        target = torch.where(mask, words.roll(1), -100)
        inputs = {"words": words, "mask": mask} if self.mask_as == "named" else (words, mask.float())
        return inputs, target


class Sentences(torch.utils.data.Dataset):
    """Pairs of random sentences as GNMT takes them, or words of which some are masked as BERT does.

    Few words of some samples count, many of others.
    """

    def __init__(self, count: int, seed: int, kind: str, mask: bool) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.words = torch.randint(3, VOCABULARY, (count, 2, LENGTH), generator=draw)
        self.kind, self.loss = kind, {"pairs": "tokens", "masked": "masked-words"}[kind]
        self.vocabulary_size, self.mask = VOCABULARY, mask

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> tuple:
        first, second = self.words[index]
        if self.kind == "pairs":
            inputs = {"source": first, "source_mask": torch.arange(LENGTH) < 3 + index % 4, "target": second}
            return inputs, second.roll(-1).masked_fill(torch.arange(LENGTH) > 1 + index % 5, -100)
        masked = (torch.arange(LENGTH) % 3 >= index % 3) & self.mask
        inputs = {"words": first.masked_fill(masked, 1), "token_types": (torch.arange(LENGTH) > 2).long()}
        inputs["attention_mask"] = torch.arange(LENGTH) < 4 + index % 3
        return inputs, {"words": torch.where(masked, first, -100), "next_sentence": torch.tensor(index % 2)}


class Spots(torch.utils.data.Dataset):
    """Pictures of one bright spot; the class is the quarter that it lies in."""

    classes = tuple("abcd")

    def __init__(self, count: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.places = torch.randint(0, 8, (count, 2), generator=draw)
        self.noise = torch.rand(count, 1, 8, 8, generator=draw)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple:
        picture, (row, column) = self.noise[index].clone(), self.places[index].tolist()
        picture[0, row, column] += 3
        return picture, 2 * (row // 4) + column // 4


def words(split: str, mask_as: str = "named") -> Words:
    return Words(18 if split == "train" else 6, 1 if split == "train" else 2, mask_as)


def sentences(split: str, kind: str, mask: bool = True) -> Sentences:
    return Sentences(18 if split == "train" else 6, 1 if split == "train" else 2, kind, mask)


class Areas(Spots):
    """Such pictures, noise all around, of heights and widths of their own."""

    size_unit = "pixels"

    def __getitem__(self, index: int) -> tuple:
        picture, label = super().__getitem__(index)
        return functional.pad(picture, (index % 3, 8 * (index % 4), 0, 5 * (index % 5))), label


def areas(split: str) -> Areas:
    return Areas(18 if split == "train" else 8, 1 if split == "train" else 2)


class Unlabelled(Spots):
    """The first three pictures have no label."""

    def __getitem__(self, index: int) -> tuple:
        picture, label = super().__getitem__(index)
        return picture, label if index > 2 else -100


def unlabelled(split: str) -> Unlabelled:
    return Unlabelled(18 if split == "train" else 3, 1)


def spots(split: str) -> Spots:
    return Spots(18 if split == "train" else 8, 1 if split == "train" else 2)


def words_loss(output: dict[str, Tensor] | Tensor, target: Tensor) -> Tensor:
    logits = output["logits"] if isinstance(output, dict) else output
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100)


def heads_loss(output: dict[str, Tensor], target: Tensor) -> Tensor:
    """The side head is judged in some minibatches alone, so that others have no gradient of it."""
    loss = functional.cross_entropy(output["logits"], target)
    return loss + functional.cross_entropy(output["side"], target) if int(target[0]) == 1 else loss


def codes_loss(output: tuple[Tensor, ...], target: Tensor) -> Tensor:
    found, pictures, code = output
    return functional.mse_loss(found, pictures.flatten(1)) + 0.1 * code.square().mean()


class Masks(nn.Module):
    """Classes of pixels by two heads, and a number for each picture: a dict of several outputs."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU())
        self.aux, self.head = nn.Conv2d(6, num_classes, 1), nn.Conv2d(6, num_classes, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.stem(x)
        aux = self.aux(x)
        x = self.body(x)
        return {"out": self.head(x), "aux": aux, "mean": x.mean((1, 2, 3))}


def masks(num_classes: int = 3) -> nn.Module:
    return Masks(num_classes)


def masked_pictures(split: str) -> list[tuple[Tensor, Tensor]]:
    """Pictures [1, 6, 5] with a class for each pixel by its value; every fifth pixel of some is labelled 255."""
    draw = torch.Generator().manual_seed(len(split))
    found = []
    for k in range(11 if split == "train" else 7):
        picture = torch.randn(1, 6, 5, generator=draw)
        target = (picture[0] > 0).long() + (picture[0] > 1).long()
        target.view(-1)[:: 5 if k % 2 else 3] = 255
        found.append((picture, target))
    return found
