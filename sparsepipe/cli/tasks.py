"""What the command's help says beside options: verbs by task, and examples, each of which can be copied."""

from collections.abc import Mapping

from ..display.words import OF_PLANS, OF_RUNS

# What one wants to do: the verbs for it. Those that are named nowhere come last, under "more".
TASKS: Mapping[str, tuple[str, ...]] = {
    "see what there is": ("models", "data list", "data info", "data check"),
    "get data": ("data fetch", "data make"),
    "describe machines": ("cluster show", "cluster check", "cluster measure"),
    "measure and decide": ("profile", "plan", "simulate", "sweep"),
    "train": ("run", "replay"),
    "follow, change and end runs": ("runs attach", "runs replan", "runs stop", "runs cancel"),
    "disturb a machine on purpose": ("interference run", "interference measure"),
    "look at what happened": ("runs list", "runs show", "runs compare", "runs drift", "runs export"),
    "explain a trace": ("trace show", "trace replay", "trace whatif", "trace export"),
    "notebooks, figures, files for others": ("reproduce", "export"),
}
FIRST_STEPS = (
    "data make shapes --out work/shapes",
    "profile --model minkvgg11bn-narrow --data work/shapes --voxel-size 0.05 --batch-size 16 --out work/profile.json",
    "plan --profile work/profile.json --devices 2 --planner model-parallel --out work/plan.json",
    "run work/plan.json --model minkvgg11bn-narrow --data work/shapes --voxel-size 0.05 --batch-size 16 --epochs 2",
    "reproduce 01_data 02_profile 03_layer_graph 04_partition 05_launch 06_figures",
)
_TIMES = ("work", "dependency", "imbalance", "averaging", "communication", "bubble")
_PLAN = ("stage", "time per minibatch", "lower bound", "gap to the bound", "averaging", "transfer")
# verb: the words of what it answers, which its help explains
WORDS: Mapping[str, Mapping[str, str]] = {
    "plan": {word: OF_PLANS[word] for word in _PLAN},
    "simulate": {word: OF_RUNS[word] for word in _TIMES},
    "trace show": {word: OF_RUNS[word] for word in _TIMES[:-1]},
    **dict.fromkeys(("runs list", "runs show", "runs compare"), {"samples/s": OF_RUNS["samples/s"]}),
}
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "models": ("models", "models resnet --parameters --classes 10"),
    "data fetch": ("data fetch digits", "data fetch mnist-5k --out data"),
    "data make": ("data make shapes --out work/shapes --train 16 --test 4",),
    "data info": ("data info work/shapes", "data info digits"),
    "data check": ("data check work/shapes --voxel-size 0.05",),
    "runs replan": ("runs replan work/run work/other_plan.json --reason slow",),
    "cluster show": ("cluster show cluster.toml", "cluster show hostfile --json"),
    "cluster check": ("cluster check hostfile",),
    "cluster measure": ("cluster measure hostfile --out cluster.toml",),
    "profile": (
        FIRST_STEPS[1],
        "profile --model resnet18-32 --data path/data.py:pictures --batch-size 32 --out work/resnet.json",
    ),
    "plan": (
        "plan --profile work/profile.json --devices 2 --out work/plan.json",
        "plan --profile TITAN=titan.json --profile RTX=rtx.json --server-file servers.txt --planner optimal",
        "plan --profile work/profile.json --cluster cluster.toml --planner optimal --planner pipedream",
        "plan --profile work/profile.json --devices 4 --devices 2 --bandwidth 12GB/s --bandwidth 1.25GB/s",
        "plan --profile TITAN=titan.json --profile RTX=rtx.json --cluster cluster.toml --objective latency "
        "--period-at-most 0.02 --out work/inference.json",
        "plan --profile work/profile.json --devices 8 --pipelines 4 --replication quorum:grace=0.05 --out work/p.json",
    ),
    "simulate": (
        "simulate work/plan.json --profile work/profile.json --devices 2 --trace work/trace.json",
        "simulate work/plan.json --profile work/profile.json --devices 2 --straggler slow:rank=1,factor=4",
    ),
    "sweep": (
        "sweep --profile work/profile.json --devices 2",
        "sweep --profile work/profile.json --devices 4 --schedule 1f1b --schedule gpipe --compression none "
        "--compression int8 --variant coarse=work/coarse.json --out work/sweep",
    ),
    "run": (
        FIRST_STEPS[3],
        "run work/plan.json --model net.py:build --data path/data.py:digits --batch-size 32 --epochs 4 --detach",
        "run --resume runs/first --epochs 4 --log tensorboard work/tensorboard",
        "run driver_configs/vgg16_4pipedream.yml",
        "run work/inference.json --forward-only runs/first",
    ),
    "replay": (
        "replay work/plan.json --profile work/profile.json --cluster cluster.toml --minibatches 64",
        "replay work/plan.json --profile work/profile.json --cluster hosts.toml --launcher ssh",
    ),
    "runs list": ("runs list", "runs list --folder runs --json"),
    "runs show": ("runs show runs/first",),
    "runs compare": ("runs compare runs/first runs/second",),
    "runs attach": ("runs attach first",),
    "runs export": ("runs export first --perfetto trace.json",),
    "trace show": ("trace show runs/first",),
    "trace whatif": ("trace whatif runs/first",),
    "trace export": ("trace export runs/first --out trace.html",),
    "interference run": ("interference run memory-streams --cores 1 --after 20 --seconds 60",),
    "interference measure": (
        "interference measure --out work/interference.jsonl --predictor work/predictor.json",
        "interference measure --out work/interference.jsonl --victim minkvgg11bn-narrow --batch-size 8 --together 1",
    ),
    "export": ("export work/plan.json --profile work/profile.json --model minkvgg11bn-narrow --out work/pipedream",),
    "reproduce": (
        "reproduce",
        "reproduce 05_launch -p epochs 4 -p train_model minkvgg16bn-narrow",
        "reproduce timeline throughput --data modelnet10-sample --out real/figures",
        "reproduce --resume",
        "reproduce --only-changed --width 3.5 --no-title --out paper/figures",
    ),
}
