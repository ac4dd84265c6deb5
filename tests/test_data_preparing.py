"""What fetched files become: paragraphs of two languages aligned by their ids, pages of Wikipedia as prose."""

import bz2
import shutil
import subprocess
from pathlib import Path

import pytest
from coded import raises

from sparsepipe import data
from sparsepipe.data.examples import open_examples
from sparsepipe.data.preparing import is_for_testing, preparer, prose
from sparsepipe.errors import InputError

PAGE = """<html><head><meta charset="utf-8"/></head><body><h1 id="hd_id1">{0}</h1><div class="x">
<p id="par_id2" class="a">{1} <span class="b">Calc</span>
&amp; {1}.</p><p>no id</p><p id="other">other</p><p id="par_id3">Same 3</p><p id="par_id4"> </p></div></body></html>"""


def _package(folder: Path, language: str, pages: dict[str, str]) -> None:
    """Build a Debian package that holds pages of the help."""
    tree = folder / f"tree-{language}"
    for name, content in pages.items():
        page = tree / "usr" / "share" / "libreoffice" / "help" / language / "text" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(content, encoding="utf-8")
    (tree / "DEBIAN").mkdir(parents=True)
    facts = {"Package": f"help-{language.lower()}", "Version": "1", "Architecture": "all", "Description": "t"}
    control = "".join(f"{key}: {value}\n" for key, value in (facts | {"Maintainer": "t <t@example.org>"}).items())
    (tree / "DEBIAN" / "control").write_text(control)
    package = folder / f"help-{language}.deb"
    subprocess.run(["dpkg-deb", "--build", str(tree), str(package)], check=True, capture_output=True)
    shutil.rmtree(tree)


def _prepared(tmp_path: Path, way: str) -> Path:
    out = tmp_path / "out"
    out.mkdir()
    preparer(way)(tmp_path / "files", out)
    return out


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb to build and unpack packages with")
def test_paragraphs_are_aligned_by_their_ids(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    names = [f"swriter/{place}.html" for place in range(30)]
    _package(tmp_path / "files", "en-US", {name: PAGE.format(f"Heading {name}", "Text") for name in names})
    german = {name: PAGE.format(f"Überschrift {name}", "Wörter") for name in names[1:]} | {"only.html": PAGE}
    _package(tmp_path / "files", "de", german)
    out = _prepared(tmp_path, "help-paragraphs")
    lines = {path.name: path.read_text(encoding="utf-8").splitlines() for path in out.iterdir()}
    assert sorted(lines) == ["test.de", "test.en", "train.de", "train.en"]
    expected = {f"Heading {name}": f"Überschrift {name}" for name in names[1:]} | {
        "Text Calc & Text.": "Wörter Calc & Wörter."
    }
    pairs = {split: dict(zip(lines[f"{split}.en"], lines[f"{split}.de"], strict=True)) for split in ("train", "test")}
    assert pairs["train"] | pairs["test"] == expected
    assert sum(map(len, lines.values())) == 2 * len(expected)
    assert all(is_for_testing(source) for source in pairs["test"])
    assert not any(is_for_testing(source) for source in pairs["train"])


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb to build and unpack packages with")
def test_packages_without_pages_are_refused(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.deb").write_bytes(b"no package")
    with raises("download.dpkg_failed", name="x.deb"):
        _prepared(tmp_path, "help-paragraphs")
    (tmp_path / "files" / "x.deb").unlink()
    _package(tmp_path / "files", "de", {"a.html": PAGE})
    (tmp_path / "out").rmdir()
    with raises("help.no_pages"):
        _prepared(tmp_path, "help-paragraphs")


def test_markup_becomes_prose() -> None:
    words = "which is a long enough line of words to be kept as a paragraph"
    markup = f"""{{{{Infobox|a={{{{b}}}}|c}}}}
== Heading {words} ==
'''Albedo''' is the [[reflectance|reflecting power]] of a [[surface]],<ref name="x">[[a]] {words}</ref> {words}.<!---->
[[File:Snow.jpg|thumb|a [[snow]] field, {words}]]
* a list {words}
{{| class="wikitable"
| cell {words}
|}}
See [http://example.org the outer link], H<sub>2</sub>O and A &amp; B, {words}.
short line
"""
    assert prose(markup) == [
        f"Albedo is the reflecting power of a surface, {words}.",
        f"See the outer link, H2O and A & B, {words}.",
    ]


def test_every_tenth_page_is_for_testing_and_redirects_are_none(tmp_path: Path) -> None:
    text = "This page has a line of prose which is long enough to be kept, number {}."
    pages = "".join(
        f"<page><title>{n}</title><text xml:space='preserve'>{text.format(n)}</text></page>" for n in range(21)
    )
    pages += (
        '<page><redirect title="a" /><text>#REDIRECT [[a]] and some more words that would be long enough</text></page>'
    )
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "pages.xml.bz2").write_bytes(bz2.compress(f"<mediawiki>{pages}</mediawiki>".encode()))
    out = _prepared(tmp_path, "wiki-pages")
    assert [path.read_text() for path in sorted((out / "test").iterdir())] == [f"{text.format(n)}\n" for n in (9, 19)]
    assert len(list((out / "train").iterdir())) == 19


@pytest.mark.parametrize("content", [b"no bz2", bz2.compress(b"<page></page>")])
def test_exports_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "pages.xml.bz2").write_bytes(content)
    with pytest.raises(InputError, match="fetch (it|them) again"):
        _prepared(tmp_path, "wiki-pages")


def test_a_way_that_is_none_lists_those_there_are() -> None:
    with raises("preparing.unknown", "digits-table, help-paragraphs, wiki-pages"):
        preparer("cooking")


@pytest.mark.parametrize("name", ["mnist-5k", "libreoffice-help-en-de", "wikipedia-pages"])
def test_the_real_ones_hold_what_their_manifests_say(name: str) -> None:
    """Where they were fetched (tests use no network)."""
    try:
        folder = data.find(name)
    except InputError as error:
        pytest.skip(str(error))
    splits = dict(next(manifest for manifest in data.list_datasets() if manifest.name == name).splits)
    counted = {
        "mnist-5k": lambda split: len(open_examples(folder, split=split)),
        "libreoffice-help-en-de": lambda split: len((folder / f"{split}.de").read_text(encoding="utf-8").splitlines()),
        "wikipedia-pages": lambda split: len(list((folder / split).glob("*.txt"))),
    }[name]
    assert {split: counted(split) for split in splits} == splits
