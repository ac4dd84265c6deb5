"""Claims: checked before they run, their numbers found in tables and documents, a verdict on each."""

import csv
import json

import pytest

from sparsepipe import InputError
from sparsepipe.cli import main
from sparsepipe.data.manifests import list_datasets
from sparsepipe.study import claim_runs
from sparsepipe.study.claim_bundle import bundle, croissant
from sparsepipe.study.claim_runs import Study
from sparsepipe.study.claims import NOT_REPRODUCED, NOT_RUN, OTHER_PACE, REPRODUCED, Claim, NumberPlace, read_claims
from sparsepipe.util.io.files import sha256

PLAN = {"command": ["plan", "-p", "minkvgg16bn", "-c", "mixed-cores"], "number": "/gap"}
BASE = {"sentence": "A.", "figure": "1", "expected": 0.0, "tolerance": 1e-9, "hardware": "any", "minutes": 0.1}
GAPS = {"notebook": "figures/12_gaps", "table": "gaps", "number": "/gap"}


def written(folder, *claims):
    """A claims file; a value of None leaves its key out."""

    def toml(value):
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
        return json.dumps(value).replace("NaN", "nan")

    lines = []
    for number, claim in enumerate(claims):
        entry = {"name": f"c{number}", **BASE, **claim}
        lines += ["[[claim]]", *(f"{key} = {toml(value)}" for key, value in entry.items() if value is not None)]
    path = folder / "claims.toml"
    path.write_text("\n".join(lines))
    return path


def test_the_claims_of_this_repository_are_sound():
    study = Study.open()
    assert not study.faults and len(study.claims) > 15
    jobs = {claim.job: claim.minutes for claim in study.cheap()}
    assert 0 < sum(jobs.values()) <= claim_runs.KICK_MINUTES
    for system in ("PipeDream", "SparsePipe", "SDPipe", "DynPipe", "README"):
        assert any(system in claim.figure for claim in study.claims), system
    sources = {claim.place.rows["source"] for claim in study.claims if "source" in claim.place.rows}
    assert sources <= {"simulated", "emulated", "measured", "log"}, "what the tables of figures write"


FAULTY = [
    ({**PLAN, "expectd": 1}, "entry_malformed"),
    ({**PLAN, "tolerance": None}, "entry_malformed"),
    ({**PLAN, "expected": True}, "entry_malformed"),
    ({**PLAN, "expected": float("nan")}, "entry_malformed"),
    ({**PLAN, "tolerance": -1}, "entry_malformed"),
    ({**PLAN, "sentence": "a\u001b[2J"}, "entry_malformed"),
    ({**PLAN, "name": "../x"}, "entry_malformed"),
    ({**PLAN, "number": "gap"}, "entry_malformed"),
    ({**PLAN, "command": "plan; rm -rf x"}, "entry_malformed"),
    ({**PLAN, **GAPS}, "entry_malformed"),
    ({**GAPS, "table": "../../secret"}, "entry_malformed"),
    ({**GAPS, "pick": "median"}, "entry_malformed"),
    ({**GAPS, "notebook": "../evil"}, "command_refused"),
    ({**GAPS, "parameters": {"root": "x"}}, "command_refused"),
    ({**GAPS, "parameters": {"seed": "net.py:build"}}, "command_refused"),
    *(
        ({**PLAN, "command": words}, "command_refused")
        for words in (
            ["train", "work/plan.json"],
            ["plan", "export", "p.json"],
            ["runs", "rm", "first", "--yes"],
            ["bash", "-c", "true"],
            ["models", "net.py:build"],
            ["models", "os:system"],
            ["plan", "-p", "/etc/passwd"],
            ["plan", "-p", "TITAN=/etc/passwd"],
            ["plan", "-p", "a/../../b"],
            ["plan", "-p", "~/x"],
            ["plan", "-p", "x", "-o", "x"],
            ["plan", "-p", "x", "-ox"],
            ["plan", "-p", "x", "--out=x"],
            ["simulate", "p.json", "--trace", "t.json"],
            ["plan", "-p", "http://host/x"],
            ["plan", "-p", "x\n"],
        )
    ),
]


@pytest.mark.parametrize(("claim", "code"), FAULTY)
def test_a_faulty_or_hostile_claim_is_refused_and_the_others_stay(tmp_path, claim, code):
    claims, faults = read_claims(written(tmp_path, claim, {**PLAN, "name": "good"}))
    assert [claim.name for claim in claims] == ["good"]
    assert [fault.code for fault in faults] == [f"claims.{code}"] and "\n" not in str(faults[0])


def test_a_file_without_claims_is_refused(tmp_path):
    for content in ("[[claim", "claim = 3", "", "a = " + "[" * 5000):
        (tmp_path / "claims.toml").write_text(content)
        with pytest.raises(InputError) as caught:
            read_claims(tmp_path / "claims.toml")
        assert caught.value.code == "claims.malformed"


def test_a_verdict_by_tolerance_and_by_another_machines_pace():
    claim = Claim(**BASE, name="a", place=NumberPlace("/x"), elsewhere=0.5)
    assert [claim.verdict(value) for value in (0.0, -1e-9, 0.5, 0.6)] == [
        REPRODUCED,
        REPRODUCED,
        OTHER_PACE,
        NOT_REPRODUCED,
    ]


def test_a_number_of_a_table_and_of_a_document(tmp_path):
    rows = [{"kind": kind, "n": n, "x": n * 10.0, "y": 2 * n} for kind in "ab" for n in (1, 2, 3)]
    path = tmp_path / "t.csv"
    with path.open("w") as file:
        writer = csv.DictWriter(file, ["kind", "n", "x", "y"])
        writer.writeheader()
        writer.writerows(rows)
    table = path.read_text()

    def value(**keys):
        return NumberPlace(**{"number": "/x", "table": "t", **keys}).read_number(table, "a")

    assert value(rows={"kind": "a", "n": 2}) == 20
    assert value(rows={"kind": "a"}, per={"number": "/y"}, pick="max") == 5
    assert value(rows={"kind": "b", "n": 3}, per={"number": "/x", "rows": {"kind": "a", "n": 1}}) == 3
    picks = {pick: value(rows={"kind": "b"}, pick=pick) for pick in ("min", "max", "mean", "last")}
    assert picks == {"min": 10, "max": 30, "mean": 20, "last": 30}
    document = NumberPlace("/a~1b/1/c")
    assert document.read_number('{"a/b": [0, {"c": 7}]}', "a") == 7
    missing = [{"rows": {"n": 9}}, {"rows": {"n": 1}}, {"rows": {"kind": "a", "n": 1}, "number": "/z"}]
    missing += [{"rows": {"kind": "a", "n": 1}, "number": "/kind"}]
    for keys in missing:
        with pytest.raises(InputError) as caught:
            value(**keys)
        assert caught.value.code == "claims.number_missing"
    for content in ("{}", "not json", '{"a/b": [0, {"c": true}]}'):
        with pytest.raises(InputError) as caught:
            document.read_number(content, "a")
        assert caught.value.code == "claims.number_missing"


def test_a_job_runs_once_and_an_interrupted_run_continues(tmp_path, monkeypatch):
    claims = [{**PLAN}, {**PLAN, "number": "/uncertainty"}, {**PLAN, "command": ["models"], "number": "/0"}]
    study, ran = Study.open(written(tmp_path, *claims), tmp_path / "out"), []

    def run(self, claim, folder):
        ran.append(claim.command[0])
        if claim.command == ("models",) and len(ran) == 2:
            raise KeyboardInterrupt
        (folder / "answer.json").write_text('{"gap": 0.0, "uncertainty": 2}')

    monkeypatch.setattr(Study, "_run_command", run)
    lines = []
    with pytest.raises(KeyboardInterrupt):
        study.run(study.claims, say=lines.append)
    assert [line.strip() for line in lines[1:3]] == [study.claims[0].command_line, study.claims[2].command_line]
    assert [row["verdict"] for row in study.verdicts()] == [REPRODUCED, NOT_REPRODUCED, NOT_RUN]
    assert study.run(study.claims) == [] and ran == ["plan", "models", "models"]
    assert "fault" in study.verdicts()[2]
    study.run(study.claims[:1], force=True)
    assert ran[3:] == ["plan"]


@pytest.mark.slow
def test_a_command_is_run_and_verified_and_faults_leave_the_others(tmp_path, capsys):
    path = written(
        tmp_path, PLAN, {**PLAN, "number": "/nowhere"}, {**PLAN, "command": ["plan", "-p", "none"]}, {**PLAN, "a": 1}
    )
    code = main(["study", "run", "--claims", str(path), "-o", str(tmp_path / "out"), "--json"])
    output = capsys.readouterr()
    rows = {row["name"]: row for row in json.loads(output.out)["claims"]}
    assert code == 2 and [row["verdict"] for row in rows.values()] == [REPRODUCED, NOT_RUN, NOT_RUN]
    assert rows["c0"]["versions"]["sparsepipe"] and rows["c0"]["seconds"] > 0 and "load" in rows["c0"]
    assert "claims.number_missing" in rows["c1"]["fault"]
    assert output.err.splitlines()[-1].count("[claims.") == 3
    assert main(["study", "verify", "c0", "--claims", str(path), "-o", str(tmp_path / "out")]) == 2, "c3 is malformed"
    assert main(["study", "verify", "cx", "--claims", str(path), "-o", str(tmp_path / "out")]) == 2


def test_a_bundle_has_everything_that_an_archive_asks_for(tmp_path, monkeypatch):
    hostile = {**PLAN, "sentence": "50 % of \\input{x} & <b>_a_</b>", "name": "hostile"}
    study = Study.open(written(tmp_path, PLAN, hostile, {**PLAN, "command": ["models"]}), tmp_path / "out")
    with pytest.raises(InputError) as caught:
        bundle(study, tmp_path / "bundle")
    assert caught.value.code == "bundle.nothing_run"
    answer = json.dumps({"gap": 0, "file": str(study.out / "plan.json")})
    monkeypatch.setattr(Study, "_run_command", lambda self, claim, folder: (folder / "answer.json").write_text(answer))
    study.run(study.claims[:2])
    files = bundle(study, tmp_path / "bundle")
    answers = [json.loads(path.read_text()) for path in files if path.name == "answer.json"]
    assert [each["file"] for each in answers] == ["STUDY/plan.json"], "an archive does not say where it was made"
    with pytest.raises(InputError) as caught:
        bundle(study, tmp_path / "bundle")
    assert caught.value.code == "bundle.folder_in_use"
    folder = tmp_path / "bundle"
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {path.relative_to(folder).as_posix(): sha256(path) for path in files[:-1]}
    verdicts = json.loads((folder / "verdicts.json").read_text())["claims"]
    assert [row["verdict"] for row in verdicts] == [REPRODUCED, REPRODUCED, NOT_RUN]
    before = (folder / "verdicts.json").read_bytes()
    assert main(["study", "verify", "c0", "--claims", str(folder / "claims.toml"), "-o", str(folder)]) == 0
    assert (folder / "verdicts.json").read_bytes() == before, "a bundle can be verified, and stays as it is"
    tex, text = (folder / "appendix.tex").read_text(), (folder / "appendix.md").read_text()
    assert r"\input" not in tex and r"50 \% of \textbackslash{}input\{x\} \&" in tex and "<b>" not in text
    assert tex.count(r"\begin{itemize}") == tex.count(r"\end{itemize}") == text.count("\n## ")
    environment = (folder / "environment.txt").read_text()
    assert "torch==" in environment and json.loads((folder / "code.json").read_text())["version"]


@pytest.mark.parametrize("manifest", list_datasets(), ids=lambda manifest: manifest.name)
def test_a_manifest_as_croissant_has_the_required_properties(manifest):
    """By the specification of Croissant 1.0: of a data set, and of each file."""
    document = json.loads(json.dumps(croissant(manifest)))
    required = ("@context", "@type", "conformsTo", "name", "description", "license", "url", "citeAs")
    assert all(document[key] for key in required) and document["@type"] == "sc:Dataset"
    assert document["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert len({file["@id"] for file in document["distribution"]}) == len(manifest.files)
    for file, remote in zip(document["distribution"], manifest.files, strict=True):
        assert file["@type"] == "cr:FileObject" and file["name"] and "/" in file["encodingFormat"]
        assert (file["contentUrl"], file.get("sha256", "")) == (remote.url, remote.sha256 or "")
