"""What the hosts of a cluster are: each is asked by a small program, over `ssh` or on this machine itself."""

from .check import ClusterReport, check_cluster
from .measure import MeasuredCluster, measure_cluster

__all__ = ["ClusterReport", "MeasuredCluster", "check_cluster", "measure_cluster"]
