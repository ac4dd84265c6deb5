"""A folder for an archive such as Zenodo: claims, verdicts, records, data manifests, environment, and the appendix.

README.md            what is in the folder, and how to verify it.
claims.toml          the claims; verdicts.json has the number and the verdict of each on this machine.
jobs/                what each command wrote: tables with provenance, answers, load, seed, versions.
figures/             pictures of the tables' figures, if they were drawn.
records/             settings and metrics of the runs behind the tables.
data/NAME.json       manifests of the data sets, as Croissant 1.0 (JSON-LD).
environment.txt      versions of all installed packages.
code.json            version and commit of the code, command and machine.
appendix.md, .tex    artifact appendix in the form of ACM and USENIX.
SHA256SUMS           of all files.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from .. import __version__
from ..data.manifests import Manifest, list_datasets
from ..errors import InputError
from ..records import Origin
from ..util.io.files import expanded, sha256, write_atomic, write_json
from . import catalogue
from .claim_runs import Study
from .claims import NOT_RUN

_TEXTS = (".json", ".jsonl", ".csv", ".txt", ".svg")
_RECORDS = ("config.json", "origin.json", "plan.json", "metrics.jsonl")  # small files of a run directory
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "sc": "https://schema.org/",
}


def croissant(manifest: Manifest) -> dict[str, Any]:
    """Return a data set's manifest as Croissant 1.0 (JSON-LD): what is downloaded, and its SHA-256.

    A data set that is generated has no files, and its description says so.

    >>> from sparsepipe.data.manifests import get_manifest
    >>> croissant(get_manifest("modelnet10"))["distribution"][0]["@type"]
    'cr:FileObject'
    """
    made = f"Made by the generator `{manifest.generator}` of sparsepipe {__version__}." if manifest.generator else ""
    files = [
        {
            "@type": "cr:FileObject",
            "@id": f"file-{number}",
            "name": file.url.rpartition("/")[2] or file.url,
            "contentUrl": file.url,
            "encodingFormat": _format_of(file.url),
            **({"contentSize": f"{file.num_bytes} B"} if file.num_bytes else {}),
            **({"sha256": file.sha256} if file.sha256 else {}),
        }
        for number, file in enumerate(manifest.files)
    ]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": manifest.name,
        "description": " ".join(f"{manifest.title}. {made} {manifest.notes}".split()),
        "license": manifest.licence,
        "url": manifest.homepage,
        "citeAs": " ".join(manifest.citation.split()),
        "distribution": files,
    }


def _format_of(url: str) -> str:
    suffixes = {
        "zip": "application/zip",
        "gz": "application/gzip",
        "tgz": "application/gzip",
        "json": "application/json",
    }
    return suffixes.get(url.rpartition(".")[2].lower(), "application/octet-stream")


def bundle(study: Study, folder: Path | str) -> list[Path]:
    """Write claims, results, manifests, environment and appendix to a new folder; return its files.

    Raises InputError if the folder exists and is not empty, or no claim has a result.
    """
    folder = expanded(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("bundle.folder_in_use", f"{folder}: is not an empty folder; choose another name")
    rows = study.verdicts()
    if all(row["verdict"] == NOT_RUN for row in rows):
        raise InputError("bundle.nothing_run", f"{study.out}: no claim has a result; run `sparsepipe study run` first")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(study.path, folder / "claims.toml")
    write_json(folder / "verdicts.json", study.document(rows))
    for job in dict.fromkeys(claim.job for claim in study.claims):
        source = study.out / "jobs" / job
        for path in sorted(source.iterdir()) if (source / "job.json").exists() else ():
            _copy(study, path, folder / "jobs" / job / path.name)
    _copy_of_notebooks(study, folder)
    for manifest in list_datasets():
        write_json(folder / "data" / f"{manifest.name}.json", croissant(manifest))
    lines = sorted({f"{each.name}=={each.version}" for each in distributions() if each.name}, key=str.lower)
    write_atomic(folder / "environment.txt", "\n".join(lines) + "\n")
    origin = Origin.here().to_json()
    code = {"name": "sparsepipe", "version": __version__}
    write_json(folder / "code.json", code | {name: origin.get(name) for name in ("commit", "versions", "machine")})
    write_atomic(folder / "appendix.md", appendix(rows, origin))
    write_atomic(folder / "appendix.tex", appendix_tex(rows, origin))
    write_atomic(folder / "README.md", _README)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = "".join(f"{sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in files)
    return [*files, write_atomic(folder / "SHA256SUMS", sums)]


def _copy(study: Study, source: Path, target: Path) -> None:
    """Copy a file. Of texts, leave out where the study and its author's folders are on this machine."""
    if not source.is_file() or source.is_symlink():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix not in _TEXTS:
        shutil.copyfile(source, target)
        return
    content = source.read_bytes()
    names = {study.out: "STUDY", catalogue.notebooks_folder().parent: "REPOSITORY", Path.home(): "HOME"}
    for path, name in names.items():
        for written in {str(path), json.dumps(str(path))[1:-1]} if path.parent != path else ():
            content = content.replace(written.encode(errors="surrogateescape"), name.encode())
    target.write_bytes(content)


def _copy_of_notebooks(study: Study, folder: Path) -> None:
    tables = {claim.place.table for claim in study.claims}
    for batch in sorted((study.out / "notebooks").glob("*")):
        for table in sorted(filter(None, tables)):
            for suffix in ("pdf", "svg", "png"):
                _copy(
                    study,
                    batch / "figures" / f"{table}.{suffix}",
                    folder / "figures" / batch.name / f"{table}.{suffix}",
                )
        for run in sorted((batch / "runs").glob("*/origin.json")):
            for name in _RECORDS:
                _copy(study, run.parent / name, folder / "records" / batch.name / run.parent.name / name)


_README = """# Results of a study

`sparsepipe study verify` compared these results with `claims.toml`; `verdicts.json` has the verdict on each claim.
`jobs/` has what each command wrote, with load, seed, versions and machine; `records/` has the runs behind them.
`data/` has the manifests of the data sets as Croissant; `environment.txt` lists all installed packages.
`appendix.md` and `appendix.tex` describe the artifact. Check the files with `sha256sum -c SHA256SUMS`.
"""


def _sections(rows: Sequence[Mapping[str, Any]], origin: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """The sections of an artifact appendix, with their paragraphs."""
    hardware = dict.fromkeys(row["hardware"] for row in rows)
    minutes = sum({row["command"]: float(row["minutes"]) for row in rows}.values())
    claims = [f"{row['name']} ({row['figure']}): {row['sentence']}" for row in rows]
    commit = f", commit {origin['commit']}" if origin.get("commit") else ""
    return [
        (
            "Abstract",
            [f"The artifact checks {len(rows)} claims. Each has a command, a number and a tolerance."],
        ),
        (
            "Artifact check-list",
            [
                f"Program: sparsepipe {__version__}{commit}",
                "Run-time environment: Linux, Python 3.11 or newer; all versions are in environment.txt",
                *(f"Hardware: {text}" for text in hardware),
                "Metrics: throughput, memory, optimality gap, accuracy",
                "Disk space: 5 GB; time to set up: 5 minutes",
                f"Time for all claims: about {max(1, round(minutes))} minutes on two cores",
                "Publicly available: yes; licence: MIT",
            ],
        ),
        ("Description", ["Data sets: their manifests are in data/, with SHA-256 and licence (Croissant)."]),
        ("Installation", ["./scripts/setup.sh, then: source .venv/bin/activate"]),
        ("Basic test", ["sparsepipe study kick (five minutes)"]),
        ("Major claims", claims),
        ("Evaluation and expected results", ["sparsepipe study run, then: sparsepipe study verify"]),
        ("Results on the authors' machine", [str(origin.get("machine", "")), *map(_result, rows)]),
        ("Notes", ["A number that depends on the pace of a machine has a second, wider tolerance."]),
    ]


def _result(row: Mapping[str, Any]) -> str:
    number = "no result" if row["value"] is None else f"{row['value']:.4g}"
    doubts = f" (load: {'; '.join(row['doubts'])})" if row.get("doubts") else ""
    expected = f"expected {row['expected']:.4g} ± {row['tolerance']:.4g}"
    return f"{row['name']}: {number}, {expected}: {row['verdict']}{doubts}"


def appendix(rows: Sequence[Mapping[str, Any]], origin: Mapping[str, Any]) -> str:
    """Return the artifact appendix as Markdown; `rows` are verdicts, `origin` the origin of the results."""
    parts = ["# Artifact appendix\n"]
    for title, lines in _sections(rows, origin):
        parts += [f"## {title}\n", *(f"- {_escaped(line, _MARKDOWN)}" for line in lines), ""]
    return "\n".join(parts)


def appendix_tex(rows: Sequence[Mapping[str, Any]], origin: Mapping[str, Any]) -> str:
    """Return the artifact appendix as LaTeX: a section to input into a paper."""
    parts = [r"\section{Artifact appendix}"]
    for title, lines in _sections(rows, origin):
        parts += [rf"\subsection{{{_escaped(title, _LATEX)}}}", r"\begin{itemize}"]
        parts += [*(rf"  \item {_escaped(line, _LATEX)}" for line in lines), r"\end{itemize}"]
    return "\n".join(parts) + "\n"


_LATEX = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
}
_MARKDOWN = {mark: f"\\{mark}" for mark in "\\`*_<>[]#|"}


def _escaped(text: str, marks: Mapping[str, str]) -> str:
    """Text of a claims file, of which nothing is a command of LaTeX or a mark of Markdown."""
    return "".join(marks.get(letter, letter) for letter in text)
