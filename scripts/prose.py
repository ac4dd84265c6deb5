"""Count wordings that hide the content of user-visible text: `python scripts/prose.py [--list]`.

tests/test_prose.py keeps the counts. A text is what a user reads: a caption, an error, a help, a docstring, a page.
"""

import ast
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType

import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.docs.build import public_names  # noqa: E402
from scripts.house import REPOSITORY, House, template  # noqa: E402
from sparsepipe.cli.command import parser  # noqa: E402

MOST_WORDS = 30  # of a sentence
MOST_MARKERS = 3  # in a thousand words
OPENINGS = {"as", "default", "of", "repeat", "such", "that", "what", "when", "with"}  # no help begins like that
# Words of a condition follow `where`; "the folder where the runs are" stays possible.
_CONDITION = r"(?:there|it|that|this|these|they|nothing|nobody|neither|no|some|several|needed|asked|either|possible)"
MARKERS = re.compile(
    r"\b(?:told|tells?|beside|anew|alike|nobody|in place of|cannot be had|can be had"
    r"|(?:held|holds?|holding) (?:\w+ )?(?:against|up)|(?:goes|go|gone|going|went) on(?! (?:to|which|a|one|the|each)\b)"
    rf"|(?:is|are|was) (?:not |no longer )?(?:here|there)(?= *[.,;:)]|$)|where {_CONDITION})\b"
    r"|(?:^|(?<=[.:;!] ))Where\b(?=[^.;!?]*,[^?]*$)"
)
_NAME = r"\"[\w.:/+-]+\""  # a list of such names counts as one word
_MARKUP = re.compile(
    rf"{_NAME}(?:, {_NAME})*|" r"\{[^{}]*\}|</?[a-z][^>]*>|`[^`]*`|\$[^$\n]*\$|https?://\S+|\]\([^)\s]*\)|&\w+;"
)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
# Ends of paragraphs, beginnings of list items, cells and headings.
_PIECES = re.compile(r"(?:^|\n)\s*(?:[-*+]|\d+\.|#+|>|\|)\s|\n\s*\n|(?<!\\)\|| · ")
_ENDS = re.compile(r"(?<=[.!?:])(?<!e\.g\.)(?<!i\.e\.)\s+")
_FENCES = re.compile(r"^( *)(```|~~~).*?^\1\2[^\n]*$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_ARGUMENT = re.compile(r"^ +\w+(?:, \w+)*: ", re.MULTILINE)  # its name is no prose
_MEMBERS = (FunctionType, classmethod, staticmethod, property, cached_property)
_EXAMPLES = re.compile(r"^ *(?:>>>|\.\.\. ).*$", re.MULTILINE)


class Prose:
    """The texts of a checkout by kind and file."""

    def __init__(self, root: Path = REPOSITORY) -> None:
        self.house = House(root)

    @cached_property
    def texts(self) -> dict[str, dict[str, list[str]]]:
        """Kind → file → its texts."""
        return {
            "captions and widgets": self._grouped(self._captions()),
            "errors": self._grouped(
                (self._file(place.rpartition(":")[0]), template(self.house._written(place, sentence)))
                for place, _, sentence in self.house.coded_errors
            ),
            "help": self._grouped(helps()),
            "docstrings": self._grouped(self._docstrings()),
            "public names": self._grouped(public_docstrings()),
            "pages": self._grouped((self._name(path), path.read_text()) for path in self._pages()),
            "notebooks": self._grouped(
                (self._name(path), cell.source)
                for path in sorted((self.house.root / "notebooks").rglob("*.ipynb"))
                for cell in nbformat.read(path, as_version=4).cells
                if cell.cell_type == "markdown"
            ),
        }

    def sentences(self, kind: str) -> Iterator[tuple[str, str]]:
        """Yield (file, sentence) of a kind."""
        for file, texts in self.texts[kind].items():
            for text in texts:
                yield from ((file, sentence) for sentence in split(text, remedies=kind == "errors"))

    def markers(self, kind: str) -> dict[str, tuple[list[str], int]]:
        """File → sentences with a marker word, one for each of its markers, and the number of words."""
        by_file: dict[str, tuple[list[str], int]] = {}
        for file, sentence in self.sentences(kind):
            marked, words = by_file.get(file, ([], 0))
            by_file[file] = (
                marked + [sentence] * len(MARKERS.findall(sentence)),
                words + len(_WORD.findall(sentence)),
            )
        return by_file

    def dense(self, kind: str) -> list[str]:
        """Files with more marker words than the limit; a short file may have one."""
        counted = self.markers(kind).items()
        return [file for file, (marked, words) in counted if len(marked) > max(1, MOST_MARKERS * words / 1000)]

    def long(self, kind: str) -> list[tuple[str, str]]:
        """(file, sentence) of sentences with more words than the limit."""
        return [pair for pair in self.sentences(kind) if len(_WORD.findall(pair[1])) > MOST_WORDS]

    def openings(self, kind: str) -> list[tuple[str, str]]:
        """(file, text) of texts that open with a word that no noun phrase opens with."""
        return [(file, text) for file, texts in self.texts[kind].items() for text in texts if opens_badly(text)]

    def _captions(self) -> Iterator[tuple[str, str]]:
        for module, nodes in self.house.nodes.items():
            if not module.startswith("sparsepipe.views"):
                continue
            inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
            docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            for node in nodes:
                joined = isinstance(node, ast.JoinedStr)
                constant = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner
                if (joined or constant) and id(node) not in docstrings:
                    assert isinstance(node, ast.expr)
                    text = _MARKUP.sub(" ", template(node).replace("\\n", "\n"))
                    if is_prose(text):
                        yield self._file(module), text

    def _docstrings(self) -> Iterator[tuple[str, str]]:
        """Docstrings of what no underscore makes private."""
        for module, nodes in self.house.nodes.items():
            for node in nodes:
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    text = ast.get_docstring(node)
                    if text and not getattr(node, "name", "").startswith("_"):
                        yield self._file(module), text

    def _pages(self) -> list[Path]:
        root = self.house.root
        folders = [root / "notebooks", root / "data_manifests", root / "figures"]
        pages = [path for folder in folders for path in folder.rglob("*.md") if "site" not in path.parts]
        return sorted([*root.glob("*.md"), *pages])

    def _file(self, module: str) -> str:
        return "/".join(self.house.places[module]) + ".py"

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.house.root))

    @staticmethod
    def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
        texts = defaultdict(list)
        for file, text in pairs:
            texts[file].append(text)
        return dict(texts)


def helps() -> Iterator[tuple[str, str]]:
    """(verb, text) of every description and help of the command line; settings' helps are among them."""
    for name, verb in parser().verbs.items():
        for text in (verb.description, verb.epilog, *(action.help for action in verb._actions)):
            if text and text != "==SUPPRESS==":
                yield name, text.partition("examples:\n")[0]


def public_docstrings() -> Iterator[tuple[str, str]]:
    """(module, docstring) of each name on the page of Python names, and of its public members."""
    for module, names in public_names().items():
        for value in names.values():
            members = (
                [] if not isinstance(value, type) else [vars(value)[name] for name in vars(value) if name[0] != "_"]
            )
            for documented in (value, *(member for member in members if isinstance(member, _MEMBERS))):
                yield module, _ARGUMENT.sub("", inspect.getdoc(documented) or "")


def split(text: str, *, remedies: bool = False) -> list[str]:
    """Return the sentences of a text, without code. `remedies`: a semicolon ends one, as in errors."""
    text = _EXAMPLES.sub("\n\n", _FENCES.sub("\n\n", text))
    pieces = [" ".join(_MARKUP.sub(" x ", piece).split()) for piece in _PIECES.split(text)]
    ends = re.compile(_ENDS.pattern.replace(":]", ":;]")) if remedies else _ENDS
    return [sentence for piece in pieces for sentence in ends.split(piece) if _WORD.search(sentence)]


def is_prose(text: str) -> bool:
    """Whether a string constant has two words in a row and is no code, style or script."""
    return bool(re.search(r"[A-Za-z]{2,} [a-z]{2,}", text)) and not re.search(
        r"[;{]\s*[\w-]+:|=>|function|\);|^\s*[\w-]+: [^;]*;|^[MLz]\d|\bvar\b|^[.#]", text
    )


def opens_badly(text: str) -> bool:
    """Whether a text opens with a word that no noun phrase opens with."""
    return bool(words := _WORD.findall(text)) and words[0].lower() in OPENINGS and text.lstrip()[:1].isalpha()


def counts(prose: Prose) -> dict[str, dict[str, int]]:
    """Kind → how many files have too many marker words, markers, long sentences and (of help) bad openings."""
    return {
        kind: {
            "dense files": len(prose.dense(kind)),
            "markers": sum(len(marked) for marked, _ in prose.markers(kind).values()),
            "long sentences": len(prose.long(kind)),
            "openings": len(prose.openings(kind)) if kind == "help" else 0,
        }
        for kind in prose.texts
    }


def main() -> int:
    """Print the counts; with --list KIND every sentence that is counted."""
    prose = Prose()
    if sys.argv[1:2] == ["--list"]:
        for kind in sys.argv[2:] or prose.texts:
            for file, (marked, _) in prose.markers(kind).items():
                for sentence in dict.fromkeys(marked):
                    print(f"{file}: marker: {', '.join(MARKERS.findall(sentence))}: {sentence}")
            for file, sentence in prose.long(kind):
                print(f"{file}: {len(_WORD.findall(sentence))} words: {sentence}")
            for file, text in prose.openings(kind) if kind == "help" else ():
                print(f"{file}: opening: {text}")
        return 0
    for kind, numbers in counts(prose).items():
        words = sum(words for _, words in prose.markers(kind).values())
        rate = 1000 * numbers["markers"] / words
        print(f"{kind:22s} {words:>7,} words, {rate:4.1f} markers in 1,000;", numbers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
