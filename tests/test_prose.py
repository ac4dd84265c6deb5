"""User-visible text is plain: few marker words, short sentences, helps that open with a noun. The counts only fall."""

import pytest

from scripts.glossary import PAGE
from scripts.prose import MARKERS, MOST_WORDS, Prose, counts, opens_badly, split
from sparsepipe.views.glossary import SECTIONS, definitions, glossary_text

# What is left to rewrite, by kind; of other kinds nothing is.
AT_MOST = {"docstrings": {"dense files": 21, "long sentences": 159}}  # those of public names are a kind of their own


def test_texts_are_plain():
    """Lower a number once it is reached: `python scripts/prose.py --list KIND` shows what is counted."""
    for kind, numbers in counts(Prose()).items():
        allowed = {"markers": numbers["markers"], **AT_MOST.get(kind, {})}
        over = {what: number for what, number in numbers.items() if number > allowed.get(what, 0)}
        assert over == {}, kind


def test_the_page_of_terms_is_that_of_the_glossary():
    assert PAGE.read_text() == glossary_text(), "python scripts/glossary.py"
    terms = [term for section in SECTIONS.values() for term in section]
    assert len({term.name for term in terms}) == len(terms) and all(term.definition for term in terms)
    assert not [term.name for term in terms if opens_badly(term.definition)]
    assert definitions("Runs", "stage").keys() >= {"bubble", "stage"}


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("Where a rank cannot, the job continues.", 1),
        ("Where are the logs?", 0),
        ("the folder where the runs are", 0),
        ("empty where there is none", 1),
        ("which layers go on which device", 0),
        ("the job goes on", 1),
        ("what held it up is not told", 2),
        ("`told` and {told}", 0),
    ],
)
def test_marker_words_are_those_of_prose(text, marked):
    assert sum(len(MARKERS.findall(sentence)) for sentence in split(text)) == marked


def test_sentences_end_where_a_reader_stops():
    text = "One two. Three four:\n\n- five\n- six; seven\n\n```\ncode code\n```\n\n| a cell | b cell |"
    assert split(text) == ["One two.", "Three four:", "five", "six; seven", "a cell", "b cell"]
    assert split("is missing; fetch it", remedies=True) == ["is missing;", "fetch it"]
    assert MOST_WORDS == 30
