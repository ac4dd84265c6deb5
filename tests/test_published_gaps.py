"""The table of gaps of published profiles: what counts as known in time, and which cases there are."""

import json

from scripts.bench.planner.published_cases import cases
from scripts.bench.planner.published_gaps import gap_within, published_gaps, summary


def row(case, gap, seconds, quick_gap, quick_seconds):
    told = {"case": case, "group": "mixes", "network": case, "devices": "4", "period": 1.0, "quick_period": 1.0}
    told["fixed_work_seconds"] = 0.05
    return told | {"gap": gap, "seconds": seconds, "quick_gap": quick_gap, "quick_seconds": quick_seconds}


def test_a_gap_counts_once_it_is_known():
    slow, none = row("slow", 0.002, 9.0, 0.04, 0.3), row("none", 0.0, 11.0, 0.2, 2.0)
    assert (gap_within(slow, 1.0), gap_within(slow, 10.0)) == (0.04, 0.002)
    assert (gap_within(none, 1.0), gap_within(none, 10.0)) == (1.0, 0.2)
    assert summary([slow, none]).splitlines() == [
        "fixed work: 0.050 s",
        "mixes: 1 of 2 within 1% in 10 s",
        "    none on 4: gap 0.2000 then, in the end 0.0000 in 11.0 s, period 1 s",
        "mixes: 1 of 2 within 5% in 1 s",
        "    none on 4: no plan then, in the end 0.0000 in 11.0 s, period 1 s",
    ]


def test_each_case_is_planned_once(shared_reference, tmp_path):
    """A case whose row is kept is not planned again: here all of them but those of nobody."""
    every = [case.name for case in cases(shared_reference)]
    assert len(set(every)) == len(every)
    kept = tmp_path / "gaps.jsonl"
    kept.write_text("".join(json.dumps(row(name, 0.0, 1.0, 0.0, 1.0)) + "\n" for name in every))
    assert [told["case"] for told in published_gaps(shared_reference, kept)] == every
    assert kept.read_text().count("\n") == len(every)
