"""Time the planners and the simulator, each competitor under its own name: `python scripts/bench_planner.py`.

Seconds are CPU time of this process, medians over `--repeats`, one thread. Published profiles are looked
for in the folder that SPARSEPIPE_REFERENCE names, else beside the repository; without them their rows are left out.
"""
