"""The command: a table of networks, and a count for each number of stages."""

import argparse
from collections.abc import Sequence
from typing import Any

from scripts.bench import tracing
from scripts.bench.document import add_json, say, tell
from scripts.bench.tracing import families, outcomes
from scripts.bench.tracing.rounds import STAGES, Answer, answer
from tests.traced_zoo import ZOO, missing


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=tracing.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="left out: all of them")
    add_json(parser)
    options = parser.parse_args(argv)
    if unknown := set(options.networks) - {*ZOO, *families.FAMILIES}:
        parser.error(f"there is no network {min(unknown)!r}, expected {', '.join([*ZOO, *families.FAMILIES])}")
    answers, cut_in_two, absent = [], [], {}
    for name in options.networks or [*ZOO, *families.FAMILIES]:
        if name in families.FAMILIES:
            if package := families.absent(name):
                absent[name] = f"{package} is not installed"
                continue
            cut_in_two.append(outcomes.outcome(name))
            say(str(cut_in_two[-1]))
            continue
        if why := missing(name):
            absent[name] = why
            say(f"{name}: {why}")
            continue
        answers.append(answer(name))
        say(_line(answers[-1]))
    document = {
        "networks": [each.as_json() for each in answers],
        "left_out": absent,
        "cut": counts(answers),
        "families": [each.as_json() for each in cut_in_two],
        "outcomes": outcomes.counts(cut_in_two),
    }
    tell(document, options.json, "\n".join([table(answers, absent), *families_table(cut_in_two)]))
    return 0


def counts(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return how many networks each cut, by number of stages."""
    return {
        "networks": len(answers),
        "sparsepipe": {str(number): sum(not each.ours[number] for each in answers) for number in STAGES},
        "torch_pipeline": {str(number): sum(not each.torch[number] for each in answers) for number in STAGES},
    }


def table(answers: Sequence[Answer], absent: dict[str, str]) -> str:
    """Write the table and the counts below it."""
    head = f"{'network':22s} {'layers':>6s}  {'sparsepipe: 2, 4 stages':28s}  torch's pipeline(): 2, 4 stages"
    total = counts(answers)
    last = "  ".join(
        f"{who} {', '.join(f'{n} of {len(answers)} in {number} stages' for number, n in total[key].items())}"
        for who, key in (("sparsepipe:", "sparsepipe"), ("torch's pipeline():", "torch_pipeline"))
    )
    left_out = [f"left out: {name}, {why}" for name, why in absent.items()]
    return "\n".join([head, *map(_line, answers), *left_out, last])


def families_table(cut_in_two: Sequence[outcomes.Outcome]) -> list[str]:
    """Write the table of the networks that are cut in two, and the count of each outcome."""
    if not cut_in_two:
        return []
    total = ", ".join(f"{number} {kind}" for kind, number in outcomes.counts(cut_in_two).items())
    return ["", "cut in two, compared with plain torch on three minibatches:", *map(str, cut_in_two), total]


def _line(each: Answer) -> str:
    ours, theirs = (", ".join(why or "yes" for why in dict.fromkeys(said.values())) for said in (each.ours, each.torch))
    return f"{each.name:22s} {each.layers:6d}  {ours:28s}  {theirs}"
