"""Replication rules as values: chosen by name and options, written and read back, refused in one line."""

import pytest
from coded import raises

from sparsepipe.errors import InputError
from sparsepipe.values.replication import RULES, parse_rule, rule, rule_from_json, rule_text, rule_to_json

CHOSEN = [
    *RULES,
    "partial-reduce:wait=0.01,overlap=false",
    "partial-reduce:wait=0.001,least_wait=0.0005,most_wait=0.5,grow=3,shrink=0.5,rounds=2,every=4",
    "partial-reduce:patience=0.1",
    "ad-psgd:every=3",
    "wsp:every=8,bound=0,scale=1",
    "local-sgd:every=16,overlap=false",
    "diloco:every=500,outer_rate=1,momentum=0,nesterov=false,bits=8,error_feedback=false",
    "quorum:quorum=2,grace=1e-05,adaptive=true",
]


@pytest.mark.parametrize("given", CHOSEN)
def test_rules_are_written_as_they_are_read(given):
    chosen = parse_rule(given)
    assert rule_text(chosen) == given
    assert parse_rule(rule_text(chosen)) == chosen
    assert rule_from_json(rule_to_json(chosen)) == chosen
    assert rule_to_json(chosen)["rule"] == chosen.name


def test_whole_numbers_are_the_seconds_that_they_are():
    assert rule("partial-reduce", {"wait": 1}) == rule("partial-reduce", {"wait": 1.0})
    assert rule_to_json(rule("quorum", {"grace": 2})) == rule_to_json(rule("quorum", {"grace": 2.0}))


def test_a_record_s_rule_lacks_options_invented_since():
    assert rule_from_json({"rule": "wsp"}) == rule("wsp")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("partial", "unknown replication 'partial', expected one of all-reduce, partial-reduce"),
        ("", "unknown replication"),
        ("quorum:least=2", "unknown option 'least'; expected one of quorum, grace"),
        ("all-reduce:every=2", "unknown option 'every'; it has none"),
        ("wsp:bound", "'bound' is not an option; expected NAME:option=value"),
        ("wsp:bound=1,bound=2", "bound is given twice"),
        ("wsp:bound=-1", "wsp: bound is -1, expected a whole number, 0 to"),
        ("wsp:scale=0", "wsp: scale is 0.0, expected above 0 and at most 1"),
        ("wsp:every=0", "wsp: every is 0, expected a whole number, 1 to"),
        ("partial-reduce:wait=-0.1", "partial-reduce: wait is -0.1, expected a finite number, 0 or more"),
        ("partial-reduce:wait=nan", "expected a finite number"),
        ("partial-reduce:wait=soon", "wait is 'soon', expected a finite number"),
        ("partial-reduce:wait=true", "wait is True, expected a finite number"),
        ("partial-reduce:wait=0.001,most_wait=0.0001", "its limits are 1e-05 and 0.0001 s"),
        ("partial-reduce:most_wait=0.0001", "limit wait, but wait is missing"),
        ("partial-reduce:wait=0.1,patience=1", "both limit how long a group waits"),
        ("partial-reduce:patience=-1", "patience is -1.0, expected a finite number, 0 or more"),
        ("partial-reduce:grow=0.5", "grow is 0.5 and shrink is 0.9, expected"),
        ("partial-reduce:overlap=maybe", "overlap is 'maybe', expected true or false"),
        ("quorum:grace=-1", "quorum: grace is -1.0, expected a finite number, 0 or more"),
        ("quorum:quorum=0", "quorum: quorum is 0, expected a whole number, 1 to"),
        ("diloco:bits=16", "bits is 16, expected 8 or 32"),
        ("diloco:momentum=1", "momentum is 1.0, expected at least 0 and below 1"),
    ],
)
def test_bad_rules_are_refused_in_one_line(given, complaint):
    with pytest.raises(InputError) as caught:
        parse_rule(given)
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("document", [None, "wsp", {"rule": "wsp", "options": [1]}, {"rule": ["wsp"]}, {}])
def test_damaged_documents_are_refused_in_one_line(document):
    with pytest.raises(InputError) as caught:
        rule_from_json(document)
    assert "replication" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", RULES)
def test_one_pipeline_has_nobody_to_average_with(name):
    with raises("replication.one_pipeline", name):
        rule(name).groups(1)


def test_a_quorum_above_the_number_of_pipelines_is_refused():
    with raises("replication.quorum", quorum=5, num_pipelines=4):
        rule("quorum", {"quorum": 5}).groups(4)
