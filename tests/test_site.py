"""The site is built without a network, and a broken link or a page that nobody links to is an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.docs.build import broken, links_of_site, plain, public_names, without_example
from sparsepipe import Link

REPOSITORY = Path(__file__).resolve().parent.parent


def test_links_that_lead_nowhere_and_pages_that_nobody_links_to_are_found(tmp_path):
    def write(name: str, body: str) -> None:
        (tmp_path / f"{name}.html").write_text(f'<nav><a href="c.html"></a></nav><article>{body}</article>')

    write("index", '<a href="b.html#here">b</a> <a href="https://example.org/x">elsewhere</a>')
    write("b", '<h1 id="here"></h1><a href="index.html#gone"></a> <img src="none.png">')
    write("c", '<a href="c.html">itself</a>')
    assert list(broken(tmp_path, ["index", "b", "c"])) == [
        "b: link to index.html#gone, a heading that does not exist",
        "b: link to none.png, which does not exist",
        "c: no other page links to it",
    ]


def test_each_public_name_is_on_the_page_once():
    names = [value for module in public_names().values() for value in module.values()]
    assert len({id(value) for value in names}) == len(names) > 100


def test_a_name_without_an_example_is_found():
    assert list(without_example({"dir": dir, "Link": Link})) == ["dir: no example"]


def test_marks_of_help_are_no_markdown():
    assert plain("*_for_.txt | <A>, as `a_b`") == r"\*\_for\_.txt &#124; \<A\>, as `a_b`"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_site_is_built_and_works_from_disk(tmp_path):
    pytest.importorskip("myst_nb", reason="no MyST-NB: ./scripts/setup.sh installs it")
    pytest.importorskip("furo", reason="no furo: ./scripts/setup.sh installs it")
    command = [sys.executable, str(REPOSITORY / "scripts" / "docs" / "build.py"), str(tmp_path / "figures")]
    environment = os.environ | {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    site = tmp_path / "site"
    done = subprocess.run([*command, "--out", str(site)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = [
        line.partition("](")[2].rstrip(")") for line in (site / "llms.txt").read_text().splitlines() if "](" in line
    ]
    assert {"notebooks/guides/install.md", "notebooks/02_data.md", "reference/python.md"} <= set(pages)
    for page in pages:
        assert (site / page).read_text().strip() and (site / page).with_suffix(".html").is_file()
    text = "".join(path.read_text() for path in site.rglob("*.html"))
    assert 'src="http' not in text and '<link rel="stylesheet" type="text/css" href="http' not in text


def test_what_notebooks_have_shown_leads_to_the_pages_of_the_site():
    shown = "<a href='figures/1_devices.ipynb'>[02](02_data.ipynb) <a href=\"../figures/index.html\"> https://x/y.ipynb"
    assert links_of_site(shown, "../") == (
        "<a href='figures/1_devices.html'>[02](02_data.html) <a href=\"../../index.html\"> https://x/y.ipynb"
    )
