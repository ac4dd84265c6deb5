"""File formats of other systems, plans and layouts of other runtimes, and stages exported as Python modules."""

from ...util.lazy_names import lazy_names

_MODULES = (
    *("blocks", "clusters", "dnn_partitioning", "dynpipe", "layouts", "pipedream_conf", "pipedream_driver"),
    *("plan_files", "runtime_settings", "sailor", "sdpipe", "sparsepipe_servers", "spot_machines", "torch_pipelining"),
)
_MOVED = ("dynpipe_logs", "stage_modules")  # into others of this folder

__all__: list[str] = []
__getattr__, __dir__ = lazy_names(globals(), {}, folders=_MODULES, unlisted=_MOVED)
