"""How long the partition explorer takes from a slider's move to the redrawn picture, in a real browser and JupyterLab.

    python scripts/bench_widgets.py [--json [FILE]] [--network NAME…] [--layers N] [--devices N] [--moves N]
                                    [--rest S] [--server lab.sh|plain…]

Key presses are timed one by one, each until its own picture is on screen (the frame after it was drawn), and by their
parts: the kernel's, the messages', the page's. A drag is 60 moves of the mouse, one a frame: how many pictures came,
and how long after the last move the last one stood there. The load average is told beside: what else runs on the
machine is measured too. `--server lab.sh plain` holds the server that scripts/lab.sh starts against a plain one.
"""
