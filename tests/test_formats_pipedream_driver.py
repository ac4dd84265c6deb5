"""Driver files of PipeDream and SparsePipe: those that they ship, what they mean, and runs of such."""

import json
import re
import shutil
from pathlib import Path

import pytest
from coded import mentions, raises
from command_line import sparsepipe
from fuzzing import fuzzed
from hypothesis import given
from test_parsers_fuzzed import damaged, edits, read_or_refused, write

from sparsepipe import RunConfig, RunRecord
from sparsepipe.data import make_shapes
from sparsepipe.records.formats.pipedream_driver import DriverFile

DRIVER = """\
'log_directory': 'output'
'module': 'models.vgg11bn-narrow.gpus=2'
'data_dir': 'shapes'
'config_file': 'models/vgg11bn/gpus=2/dp_conf.json'
'container': 'container'
'machines': ['localhost:0', 'localhost:1']
'batch_size': 4
'learning_rate': 0.02
'weight_decay': 0.0005
'epochs': 1
'print_frequency': 1
'compress_activations': False
'learning_rate_policy': 'polynomial'
'model_type': 'Minkowski'
'distributed_backend': 'gloo'
'voxel_size': 0.1
'sample_ratio': 0.125
"""
CONF = {"module_to_stage_map": [0, 0, 0], "stage_to_rank_map": {"0": [0, 1]}}


def workload(folder: Path, text: str = DRIVER, conf: object = CONF) -> Path:
    """Lay a driver file out as PipeDream does: in driver_configs, beside models and data."""
    write_into = folder / "models/vgg11bn/gpus=2"
    write_into.mkdir(parents=True)
    (write_into / "dp_conf.json").write_text(json.dumps(conf))
    (folder / "driver_configs").mkdir()
    return write(folder / "driver_configs/two.yml", text)


SHIPPED = {  # driver file → (the network here, ranks)
    "minkvgg16_2pipedream.yml": ("minkvgg16bn", 7),
    "minkvgg16_2dp.yml": ("minkvgg16bn", 8),
    "vgg2_pipedream.yml": ("minkvgg16bn", 2),
    "gnmt_12pipedream.yml": ("gnmt", 12),
    "gnmt_4pipedream.yml": ("gnmt", 4),
    "gnmt_4dp.yml": ("gnmt", 4),
    "gnmt_12dp.yml": ("gnmt", 12),
    "vgg16_4pipedream.yml": ("vgg16-images", 4),
    "vgg16_16pipedream.yml": ("vgg16-images", 16),
    "vgg16_4dp.yml": ("vgg16-images", 4),
    "resnet50_16dp.yml": ("resnet50", 16),
    "vgg16_16dp.yml": ("vgg16-images", 16),
}


def test_every_driver_file_that_is_shipped(shared_reference):
    """Networks, ranks and settings are those that a reader finds; each other key is told in one line."""
    paths = {path.name: path for path in (shared_reference / "configs").rglob("driver_configs/*.yml")}
    if not paths:
        pytest.skip(f"{shared_reference} has no driver files")
    assert set(paths) == set(SHIPPED)
    for name, path in paths.items():
        driver, text = DriverFile.load(path), path.read_text()
        assert (driver.model, len(driver.cluster().devices)) == SHIPPED[name]
        config = RunConfig(driver.model, driver.data, **driver.settings)
        for key in ("batch_size", "learning_rate", "weight_decay", "epochs", "voxel_size"):
            if found := re.search(rf"'{key}': ([\d.]+)", text):
                assert getattr(config, key) == float(found[1])
        assert config.learning_rate_schedule == "polynomial" and config.learning_rate_decay == 2.0
        assert (config.optimizer == "adam") == ("gnmt" in name)
        keys = set(re.findall(r"^'(\w+)':", text, flags=re.MULTILINE))
        told = {line.split(" is ignored: ")[0] for line in driver.without_meaning}
        assert told == keys & {
            *("container", "distributed_backend", "print_frequency", "verbose_frequency"),
            *("compress_activations", "compress_in_gpu", "translation_model", "eval_batch_size"),
        }
        if "gpus=7_hete" in text:
            with raises("driver.conf_missing", "gpus=7_hete/hybrid_conf.json'"):
                driver.config_file  # noqa: B018
        else:
            assert driver.config_file.resolve() == (path.parent.parent / driver.values["config_file"]).resolve()


@pytest.mark.parametrize("policy", ["step", "polynomial", "exponential_decay"])
def test_learning_rates_are_pipedreams_at_the_beginning_of_each_epoch(tmp_path, policy):
    """Their adjust_learning_rate, written out."""
    text = DRIVER.replace("polynomial", policy).replace("'epochs': 1", "'epochs': 60")
    config = RunConfig("m", "d", **DriverFile.load(workload(tmp_path, text)).settings)
    theirs = {
        "step": lambda epoch: 0.02 * 0.1 ** (epoch // 30),
        "polynomial": lambda epoch: 0.02 * (1.0 - epoch / 60) ** 2.0,
        "exponential_decay": lambda epoch: 0.02 * 0.97 ** (epoch / 60),
    }[policy]
    for epoch in (0, 1, 29, 30, 59):
        ours = config.rate.at(10 * epoch, epoch_minibatches=10, total_minibatches=600)
        assert ours == pytest.approx(theirs(epoch))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("'epochs'", "'epoch'", r"two.yml: key 'epoch' is none of a driver file's: is it epochs\?"),
        ("'epochs'", "'xyz'", "key 'xyz' is none of a driver file's: leave it out"),
        ("'epochs'", "'batch_size'", "two.yml:10: not valid YAML .key 'batch_size' occurs twice"),
        ("'batch_size': 4", "'batch_size': 0", "batch_size is 0, expected a whole number, 1"),
        ("'polynomial'", "'cosine'", "learning_rate_policy is 'cosine', expected one of step, polynomial"),
        ("'Minkowski'", "'minkowski'", "model_type is 'minkowski', expected one of Minkowski, point_cloud"),
        ("vgg11bn-narrow", "vgg12", "module 'models.vgg12.gpus=2' of model_type Minkowski is not a known network"),
        ("dp_conf", "mp_conf", r"config_file '.*mp_conf.json' was not found"),
        (", 'localhost:1'", "", r"machines lists 1 GPU, but .*dp_conf.json is for 2 ranks; list the same number"),
        ("localhost:1", "localhost:0", "'localhost:0' is listed twice, but each GPU is one rank"),
        ("'data_dir': 'shapes'\n", "", "data_dir is missing"),
        ("'shapes'", "'evil.py:make'", "data_dir 'evil.py:make' names a function, expected a folder or a data set"),
        ("'shapes'", "'../evil.py:make'", "names a function"),
        ("'shapes'", "'evil:make'", "data_dir 'evil:make' names a function"),
        ("models.vgg11bn-narrow.gpus=2", "evil.py:make", "module 'evil.py:make' of model_type Minkowski is not"),
        ("machines", "nodes", "expected a driver file with machines"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, old, new, message):
    path = workload(tmp_path, DRIVER.replace(old, new))
    write(tmp_path / "evil.py", f"open({str(tmp_path / 'was-run')!r}, 'w')\ndef make(split): return []\n")
    code, out, lines = sparsepipe("run", path, folder=tmp_path)
    assert (code, out) == (2, "") and re.search(message, lines[-1]), lines
    assert all("is ignored" in line for line in lines[:-1])
    assert not (tmp_path / "output").exists() and not (tmp_path / "runs").exists(), "nothing was begun"
    assert not (tmp_path / "was-run").exists()


def test_no_input_pipelining_and_recompute_change_the_plan(tmp_path):
    from sparsepipe import Plan, Stage

    driver = DriverFile.load(workload(tmp_path, DRIVER + "'no_input_pipelining': True\n'recompute': True\n"))
    plan = driver.planned(Plan((Stage(("a",), (0,)), Stage(("b",), (1,)))))
    assert plan.schedule == "sequential" and all(stage.recompute for stage in plan.stages)


@pytest.mark.slow
def test_a_driver_file_runs_as_it_is(tmp_path):
    make_shapes(tmp_path / "shapes", num_train=2, num_test=1, seed=0)
    path = workload(tmp_path)
    code, out, lines = sparsepipe("run", path, "--minibatches", 2, "--no-validation", "--json", folder=tmp_path)
    assert code == 0, lines
    record = RunRecord.load(Path(json.loads(out)["run_dir"]))
    assert record.folder.parent == tmp_path / "output"
    assert record.config["model"] == "minkvgg11bn-narrow" and record.config["num_points"] == 512
    assert [stage.ranks for stage in record.plan.stages] == [(0, 1)]
    assert json.loads(out)["minibatches"] == 2
    assert sum("is ignored" in line for line in lines) == 4
    shutil.rmtree(record.folder)
    code, _, lines = sparsepipe("run", path, "--model", "minkvgg11bn", "--data", "elsewhere", folder=tmp_path)
    assert code == 2 and "elsewhere" in lines[-1], "what is given on the command line goes before the file"


@pytest.mark.slow
@fuzzed(80)
@given(edits)
def test_damaged_driver_files(tmp_path, found):
    path = write(tmp_path / "two.yml", damaged(DRIVER, found))

    def use(driver: DriverFile) -> None:
        driver.cluster()
        RunConfig("m", driver.data, **driver.settings)
        driver.model  # noqa: B018
        driver.config_file  # noqa: B018

    read_or_refused(path, lambda: DriverFile.load(path), use)


def test_a_host_of_a_driver_that_is_not_there_is_named(tmp_path):
    if shutil.which("ssh") is None:
        pytest.skip("no ssh on this machine")
    code, out, lines = sparsepipe("run", workload(tmp_path, DRIVER.replace("localhost", "server0")), folder=tmp_path)
    assert (code, out) == (2, "")
    assert mentions(lines[-1], "ssh server0", "cluster file"), lines
