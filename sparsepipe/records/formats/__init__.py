"""File formats of other systems (PipeDream's, SparsePipe's), and stages exported as Python modules."""

from ...util.lazy_names import lazy_names

_MODULES = (
    *("clusters", "dnn_partitioning", "dynpipe", "dynpipe_logs", "pipedream_conf", "pipedream_driver", "plan_files"),
    *("sailor", "sdpipe", "sparsepipe_servers", "spot_machines", "stage_modules"),
)

__all__: list[str] = []
__getattr__, __dir__ = lazy_names(globals(), {}, folders=_MODULES)
