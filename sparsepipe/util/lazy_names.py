"""Names that a package imports when they are first asked for (PEP 562), and modules that had another name before."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..errors import missing_extra


def lazy_names(
    namespace: dict[str, Any],
    homes: Mapping[str, str],
    *,
    folders: Collection[str] = (),
    unlisted: Collection[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package, whose globals() are `namespace`.

    `homes`: name -> file or folder of the package that gives it; `folders`: folders that are names themselves;
    `unlisted`: others, which `dir` leaves out. All else in `__all__` the package has imported already.
    """
    package, known = namespace["__name__"], {*folders, *unlisted}

    def find(name: str) -> Any:
        if name not in known and name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(f".{homes.get(name, name)}", package)
        except ImportError as error:
            raise missing_extra(error) or error from None
        namespace[name] = value = module if name in known else getattr(module, name)
        return value

    def names() -> list[str]:
        of_every_module = {name for name in namespace if name.startswith("__")}
        return sorted({*of_every_module, *namespace["__all__"], *folders})

    return find, names


_MOVED: Mapping[str, str] = {  # each move once: a name may take several; a part of a folder before the folder
    "sparsepipe.runtime.pipelines.resuming": "sparsepipe.runtime.pipelines.journal",
    "sparsepipe.runtime.pipelines.tallies": "sparsepipe.runtime.pipelines.member",
    "sparsepipe.values.replication.paces": "sparsepipe.values.replication.base",
    "sparsepipe.values.replication.handing_out": "sparsepipe.values.replication.base",
    "sparsepipe.values.replication.ad_psgd": "sparsepipe.values.replication.asynchronous",
    "sparsepipe.values.replication.wsp": "sparsepipe.values.replication.asynchronous",
    "sparsepipe.values.replication.all_reduce": "sparsepipe.values.replication.synchronous",
    "sparsepipe.values.replication.diloco": "sparsepipe.values.replication.synchronous",
    "sparsepipe.values.replication.local_sgd": "sparsepipe.values.replication.synchronous",
    "sparsepipe.values.replication.quorum": "sparsepipe.values.replication.partial_reduce",
    "sparsepipe.records.formats.dynpipe_logs": "sparsepipe.records.formats.dynpipe",
    "sparsepipe.records.formats.stage_modules": "sparsepipe.records.formats.torch_pipelining",
    **dict.fromkeys(
        (f"sparsepipe.networks.{name}" for name in ("minkfcnn", "minkpointnet", "minkresnet", "minkvgg", "vgg")),
        "sparsepipe.networks.classification",
    ),
    **dict.fromkeys(
        (f"sparsepipe.networks.images.{name}" for name in ("alexnet", "convnet", "squeezenet", "vgg")),
        "sparsepipe.networks.images.chains",
    ),
    "sparsepipe.networks.blocks": "sparsepipe.networks.rows",
    "sparsepipe.networks.images.densenet": "sparsepipe.networks.images.resnet",
    "sparsepipe.cluster": "sparsepipe.values.cluster",
    "sparsepipe.display.markup": "sparsepipe.views.markup",
    "sparsepipe.display.ties": "sparsepipe.views.tables",
    "sparsepipe.display": "sparsepipe.util.text",
    "sparsepipe.dynamics": "sparsepipe.monitoring",
    "sparsepipe.forecast": "sparsepipe.planning.forecast",
    "sparsepipe.formats": "sparsepipe.records.formats",
    "sparsepipe.functions": "sparsepipe.util.io.functions",
    "sparsepipe.graph": "sparsepipe.values.graph",
    "sparsepipe.launchers": "sparsepipe.launching",
    "sparsepipe.losses": "sparsepipe.networks.losses",
    "sparsepipe.measured_plans": "sparsepipe.planning.measured_plans",
    "sparsepipe.models": "sparsepipe.networks",
    "sparsepipe.plan": "sparsepipe.values.plan",
    "sparsepipe.planners": "sparsepipe.planning",
    "sparsepipe.plots": "sparsepipe.views.plots",
    "sparsepipe.profile": "sparsepipe.values.profile",
    "sparsepipe.profiler": "sparsepipe.profiling",
    "sparsepipe.provenance": "sparsepipe.records.provenance",
    "sparsepipe.record": "sparsepipe.records",
    "sparsepipe.replaying": "sparsepipe.planning.replaying",
    "sparsepipe.replication": "sparsepipe.values.replication",
    "sparsepipe.reproduce": "sparsepipe.study",
    "sparsepipe.runtime.pipelines.changes": "sparsepipe.runtime.pipelines.member",
    "sparsepipe.schedule": "sparsepipe.values.schedule",
    "sparsepipe.simulator": "sparsepipe.planning.simulator",
    "sparsepipe.sinks": "sparsepipe.records.sinks",
    "sparsepipe.stragglers": "sparsepipe.values.stragglers",
    "sparsepipe.sweeps": "sparsepipe.planning.sweeps",
    "sparsepipe.trace": "sparsepipe.values.trace",
    "sparsepipe.widgets": "sparsepipe.views.widgets",
}


def module_now(name: str) -> str:
    """Return the dotted name that a module has now; what follows a colon stays.

    >>> module_now("sparsepipe.reproduce.digit_images:digits")
    'sparsepipe.study.digit_images:digits'
    >>> module_now("sparsepipe.replication.wsp:Wsp")
    'sparsepipe.values.replication.asynchronous:Wsp'
    """
    while old := next((old for old in _MOVED if name == old or name.startswith((f"{old}.", f"{old}:"))), ""):
        name = _MOVED[old] + name.removeprefix(old)
    return name


class _OldNames(MetaPathFinder, Loader):
    """Imports a module by its old name: the same module, so that its classes stay the same, too."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("sparsepipe.") or module_now(name) == name:
            return None
        return ModuleSpec(name, self, loader_state=import_module(module_now(name)).__spec__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[module_now(spec.name)]

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state  # its import has put the old name's there


def find_old_names() -> None:
    """Let `import` find modules by their old names, before the files of a folder that has a new name."""
    sys.meta_path.insert(0, _OldNames())
