"""A network that two processes of this machine train: profiled as they will be, and cut in two."""

from sparsepipe import Cluster, Plan, Profile, partition, profile_model
from sparsepipe.runtime import RunConfig
from sparsepipe.study.contention import local_link


def cut_in_two(config: RunConfig) -> tuple[Profile, Cluster, Plan]:
    """Measure the network of a run beside another process at the same work, and the link between two; plan both stages.

    Raises InputError for what cannot run.
    """
    settings = {"batch_size": config.batch_size, "voxel_size": config.voxel_size, "num_points": config.num_points}
    profile = profile_model(config.model, config.data, **settings, engine=config.engine, threads=1, beside=1)
    cluster = Cluster.uniform(2, device_type=profile.device_types[0], link=local_link())
    return profile, cluster, partition(profile, cluster, planner="model-parallel")
