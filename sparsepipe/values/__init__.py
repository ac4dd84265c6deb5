"""The values that everything else stands on: plans, clusters, profiles, traces, schedules, replication rules."""
