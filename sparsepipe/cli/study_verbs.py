"""The verbs about claims: kick and run their commands, verify their numbers, bundle the results."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import one_line
from ..util.io.files import expanded, write_json
from .options import Parser, flags
from .output import Answer, cell, progress_line, table

if TYPE_CHECKING:
    from ..study.claim_runs import Study

SUMMARY = "run and verify the claims of a paper, bundle the results"


def _where(verb: Parser) -> None:
    verb.add_argument(
        "--claims", type=expanded, metavar="FILE.toml", help="claims file (default: that of this repository)"
    )


def _kept(verb: Parser) -> None:
    verb.add_argument(
        *flags("--out"),
        type=expanded,
        default=Path("work/study"),
        metavar="DIR",
        help="folder of the results, which a further call continues (default: work/study)",
    )
    _where(verb)


def _starting(verb: Parser) -> None:
    _kept(verb)
    verb.add_argument("--force", action="store_true", help="repetition of commands that have ended here")
    verb.add_argument("--pictures", action="store_true", help="export of the figures, too; needs a browser")
    verb.add_argument("--dry-run", action="store_true", help="list of the commands, without running them")


def _run(verb: Parser) -> None:
    verb.add_argument("names", nargs="*", metavar="CLAIM", help="claims by name (default: all)")
    _starting(verb)


def _verify(verb: Parser) -> None:
    verb.add_argument("names", nargs="*", metavar="CLAIM", help="claims by name (default: all)")
    _kept(verb)


def _bundle(verb: Parser) -> None:
    verb.add_argument("folder", type=expanded, metavar="FOLDER", help="new folder of the bundle")
    _kept(verb)


def kick(options: argparse.Namespace) -> Answer:
    """Run the cheapest claims, five minutes together, and verify them."""
    study = _opened(options)
    return _started(study, study.cheap(), options)


def run(options: argparse.Namespace) -> Answer:
    """Run claims that have not run here yet, and verify them."""
    study = _opened(options)
    return _started(study, study.chosen(options.names), options)


def verify(options: argparse.Namespace) -> Answer:
    """Give a verdict on each claim from its results; run nothing."""
    study = _opened(options)
    return _verdicts(study, study.verdicts(study.chosen(options.names)))


def write_bundle(options: argparse.Namespace) -> Answer:
    """Write claims, verdicts, results, manifests, environment and appendix to a folder."""
    from ..study.claim_bundle import bundle

    study = _opened(options)
    files = bundle(study, options.folder)
    document = {"folder": str(options.folder), "files": len(files)}
    return Answer(document, f"{one_line(options.folder)}: {len(files)} files", _of_faults(study))


def _opened(options: argparse.Namespace) -> "Study":
    from ..study.claim_runs import Study  # here: it brings the notebooks' driver

    return Study.open(options.claims, options.out)


def _started(study: "Study", claims: "list[Any]", options: argparse.Namespace) -> Answer:
    for fault in study.faults:
        progress_line(f"left out: {fault} [{fault.code}]")
    if options.dry_run:
        lines = list(dict.fromkeys(claim.command_line for claim in claims))
        return Answer({"commands": lines}, "\n".join(lines), _of_faults(study))
    failed = study.run(claims, force=options.force, pictures=options.pictures, say=progress_line)
    answer = _verdicts(study, study.verdicts(claims))
    return answer._replace(fault="; ".join(filter(None, [answer.fault, *failed])))


def _verdicts(study: "Study", claims: list[dict[str, Any]]) -> Answer:
    document = study.document(claims)
    write_json(study.out / "verdicts.json", study.document(study.verdicts()))
    rows = [["claim", "expected", "here", "verdict", "load"]]
    for claim in claims:
        expected = f"{cell(float(claim['expected']))} ± {cell(float(claim['tolerance']))}"
        load = "; ".join(claim.get("doubts", ()))
        rows.append([claim["name"], expected, cell(claim["value"]), claim["verdict"], one_line(load)])
    verdicts = [claim["verdict"] for claim in claims]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)]
    missing = [claim["fault"] for claim in claims if "fault" in claim]
    wrong = [claim["name"] for claim in claims if claim["verdict"] == "not reproduced"]
    failed = [f"not reproduced: {', '.join(wrong)}"] if wrong else []
    if any(claim["name"] in wrong and claim.get("doubts") for claim in claims):
        failed[0] += " (measured under load; repeat on an idle machine by `study run NAME --force`)"
    text = f"{table(rows)}\n{', '.join(counts)}; {one_line(study.out / 'verdicts.json')} has all"
    return Answer(document, text, "; ".join([*filter(None, [_of_faults(study)]), *missing, *failed]))


def _of_faults(study: "Study") -> str:
    return "; ".join(f"{fault} [{fault.code}]" for fault in study.faults)


OPTIONS: Mapping[str, tuple[str, Callable[[Parser], None]]] = {
    "study kick": ("run the claims that take five minutes together", _starting),
    "study run": ("run the commands of claims, continue an interrupted run", _run),
    "study verify": ("give a verdict on each claim from its results", _verify),
    "study bundle": ("write a folder for an archive, with an appendix", _bundle),
}
VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "study kick": kick,
    "study run": run,
    "study verify": verify,
    "study bundle": write_bundle,
}
