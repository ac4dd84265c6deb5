"""Files that say which hosts there are, of ours and of other systems: one function reads each of them as a Cluster."""

from .detection import IN_SLURM, KINDS, ClusterFile, kind_of, load_cluster, load_cluster_file, tells_links, tells_types

__all__ = [
    "IN_SLURM",
    "KINDS",
    "ClusterFile",
    "kind_of",
    "load_cluster",
    "load_cluster_file",
    "tells_links",
    "tells_types",
]
