"""What a change of the plan costs a running job: `python scripts/bench_replan.py [--model minkvgg16bn] [--moves 6]`.

A job of two processes trains and goes from one cut to another and back; between two changes it trains for a while.
Of each the table has the longest gap between two updates, from when the change was asked for until the first update
under the new plan, less the usual one (the pause); what the run itself says of it, part by part; and the limit: the
bytes that changed hands over what two processes here can send each other through a socket, and the filling.
"""
