"""Help by task, examples that parse, and what a mistyped word may have meant."""

import os
import pickle
import re
import shlex
import subprocess
import sys

import pytest

from sparsepipe import InputError
from sparsepipe.cli import main
from sparsepipe.cli.arguments import GROUPS, OPTIONS
from sparsepipe.cli.command import as_option
from sparsepipe.cli.parsing import EXAMPLES, FIRST_STEPS, TASKS, WORDS, continued, parser


def said(*words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    output = capsys.readouterr()
    return ended.value.code, output.out, output.err


def test_help_names_every_verb_once_by_task_and_shows_first_steps(capsys):
    code, out, _ = said("--help", capsys=capsys)
    rows = [line for line in out.splitlines() if re.match(r"  (?!sparsepipe )\w", line)]
    assert code == 0 and sorted(row[2:].partition("  ")[0] for row in rows) == sorted(OPTIONS)
    assert all(f"\n{task}\n" in out for task in TASKS) and f"  sparsepipe {FIRST_STEPS[0]}\n" in out


@pytest.mark.parametrize("line", [*FIRST_STEPS, *(line for lines in EXAMPLES.values() for line in lines)])
def test_an_example_is_taken_by_the_parser(line):
    options = parser().parse_args(shlex.split(line))
    assert options.verb in OPTIONS
    assert line in (*EXAMPLES.get(options.verb, ()), *FIRST_STEPS)


def test_the_words_of_an_answer_are_explained_in_the_verbs_help(capsys):
    """`simulate` said "bubble 7.3% (imbalance 3.8%, dependency 3.5%, …)", and nothing what these are."""
    for verb, words in WORDS.items():
        out = " ".join(said(*verb.split(), "--help-all", capsys=capsys)[1].split())
        assert all(f"{word}: {told}" in out for word, told in words.items()), verb
    assert {"bubble", "imbalance", "dependency", "communication"} <= set(WORDS["simulate"])


def test_examples_stand_below_the_verbs_own_help(capsys):
    assert EXAMPLES.keys() <= OPTIONS.keys()
    for option in "--help", "--help-all":
        _, out, _ = said("train", option, capsys=capsys)
        assert "examples:\n  sparsepipe train work/plan.json --epochs 2" in out
    command = "echo " + "plan -p file.json " * 9
    done = subprocess.run(["bash", "-c", continued(command)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == command.split()[1:], "a shell reads it as it is printed"


def test_help_of_a_verb_is_one_screen(monkeypatch):
    """80 columns, 40 lines, 15 options; the others, and the help of each group of verbs, come with --help-all."""
    monkeypatch.setenv("COLUMNS", "80")
    top = parser()
    for name, verb in top.verbs.items():
        lines = verb.format_help().splitlines()
        options = [line for line in lines if line.startswith("  -")]
        assert len(lines) <= 40 and max(map(len, lines)) <= 80 and len(options) <= 15, name
        common, verb.common = verb.common, ()
        everything = verb.format_help()
        assert set(common) <= verb._option_string_actions.keys()
        every = [action.option_strings for action in verb._actions if action.option_strings]
        assert all(any(f"  {word}" in everything for word in names) for names in every if "--help" not in names), name


def test_help_opens_with_a_noun():
    """No help, and no summary, opens with one of these words, or is a fragment."""
    words = {"of", "that", "what", "such", "as", "with", "when", "default", "repeat"}
    top = parser()
    helps = [action.help for verb in top.verbs.values() for action in verb._actions]
    helps += [summary for summary, _ in OPTIONS.values()] + list(GROUPS.values())
    assert len(helps) > 300 and not [text for text in helps if re.split(r"[^a-z]", text)[0] in words]


def test_old_names_are_taken_and_not_shown():
    """`run` and its like parse to the verb of today, with the same options; no help and no suggestion has them."""
    top, files = parser(), "-p p.json -n 2"
    pairs = {
        "replay plan.json --profile p.json --devices 2 --straggler slow:1 --run-dir r": f"emulate plan.json {files} "
        "--inject slow:1 -o r",
        "export plan.json --profile p.json --out d": "plan export plan.json -p p.json -o d",
        "trace replay r": "trace simulate r",
        "runs export r --perfetto t.json": "runs export r -o t.json",
        "trace export r --chrome t.json": "trace export r -o t.json",
        "run plan.json --model m --profile p.json --straggler a --run-dir r": "train plan.json -m m --expect p.json "
        "--inject a -o r",
    }
    for old, new in pairs.items():
        before, today = (vars(top.parse(shlex.split(line))) for line in (old, new))
        before.pop("act")
        assert {name: today.get(name) for name in before} == before
    shown = top.format_help() + "".join(verb.format_help() for verb in top.verbs.values())
    for word in ("--straggler", "--run-dir", "--perfetto", "--chrome", "--forward-only", " replay ", "sparsepipe run "):
        assert word not in shown


MEANT = [
    ("plna", "sparsepipe: argument VERB: invalid choice: 'plna'; did you mean plan?"),
    ("runs lst", "sparsepipe runs: argument VERB: invalid choice: 'lst'; did you mean list?"),
    ("plan --planner optimum", "argument --planner: invalid choice: 'optimum'; did you mean optimal?"),
    ("reproduce --only", "sparsepipe reproduce: unrecognized arguments: --only; did you mean --only-changed?"),
    ("train x --epoch 3", "sparsepipe train: unrecognized arguments: --epoch 3; did you mean --epochs?"),
    ("train x --epoch=3", "did you mean --epochs? (see sparsepipe train --help)"),
    ("plan --profil x.json", "sparsepipe plan: unrecognized arguments: --profil x.json; did you mean --profile?"),
    ("plan --devices=2 shw", "sparsepipe plan: argument VERB: invalid choice: 'shw'; did you mean show?"),
    ("runs --foo 1", "sparsepipe runs: unrecognized arguments: --foo 1 (see sparsepipe runs --help)"),
    ("train x --zzz", "sparsepipe train: unrecognized arguments: --zzz (see sparsepipe train --help)"),
    ("replya", "invalid choice: 'replya'; did you mean plan?"),
    ("emulate x --injct y", "unrecognized arguments: --injct y; did you mean --inject?"),
    ("trace simulat", "did you mean simulate?"),
    ("runs exprt", "did you mean export?"),
    ("models a b", "sparsepipe models: unrecognized arguments: b (see sparsepipe models --help)"),
]


@pytest.mark.parametrize(("line", "message"), MEANT)
def test_a_mistyped_word_is_told_what_it_may_have_meant(line, message, capsys):
    code, out, err = said(*line.split(), capsys=capsys)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


@pytest.mark.slow
def test_a_shell_completes_verbs_options_and_choices(tmp_path):
    pytest.importorskip("argcomplete")

    def completions(line):
        told = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
        told |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "out"), "COMP_TYPE": "9"}
        (tmp_path / "out").write_text("")
        code = "import sys; sys.argv[0] = 'sparsepipe'; from sparsepipe.cli import main; main([])"
        subprocess.run([sys.executable, "-c", code], env=os.environ | told, check=True, stderr=subprocess.DEVNULL)
        return {word.strip() for word in (tmp_path / "out").read_text().split("\n")}

    assert {"plan", "profile"} <= completions("sparsepipe p") and "replay" not in completions("sparsepipe p")
    assert "--only-changed" in completions("sparsepipe reproduce --o")
    assert {"optimal", "pipedream"} <= completions("sparsepipe plan --planner ")


@pytest.mark.parametrize(
    ("verb", "name", "value", "told"),
    [
        ("profile", "voxel_size", None, "--voxel-size"),
        ("plan", "planner", "optimal", "--planner optimal"),
        ("plan", "use_fewer_machines", True, "--use-fewer-machines"),
        ("train", "profile", ..., "--expect [TYPE=]FILE"),
        ("train", "num_microbatches", None, "plan --num-microbatches"),
        ("train", "stragglers", None, "--inject"),
        ("train", "run_dir", None, "--out"),
        ("runs show", "planner", "optimal", "planner='optimal'"),
        ("reproduce", "voxel_size", None, "voxel_size"),
    ],
)
def test_settings_are_told_as_options_of_the_verb(verb, name, value, told):
    """`plan` said period_at_most, `profile` to give voxel_size: names of Python, which no command line takes."""
    assert as_option(name, value, verb, parser().verbs) == told


def test_an_error_writes_its_settings_alone():
    """Whatever else looks like one: a path of the user's, the name in a file."""
    error = InputError("test.code", "my_voxel_size/{x}: {voxel_size}", setting="voxel_size")
    assert str(error) == "my_voxel_size/{x}: voxel_size"
    assert error.written(lambda name, _: f"--{name}") == "my_voxel_size/{x}: --voxel_size"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_number_of_points_may_be_all() -> None:
    run = "run plan.json --model minkvgg11bn --data x --num-points"
    given = [parser().parse_args(shlex.split(f"{run} {word}")).num_points for word in ("all", "77", "1e3")]
    assert given == ["all", 77, 1000]
    assert parser().parse_args(shlex.split("data check x --num-points all")).num_points == "all"
