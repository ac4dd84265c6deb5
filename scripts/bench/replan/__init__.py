"""What a change of the plan costs a running job, and what changing it gains: `python scripts/bench_replan.py`.

--what pause     A job of two processes trains MinkVGG16 and goes from one cut to another and back; between two changes
                 it trains for a while. Of each the table has the longest gap between two updates, from when the change
                 was asked for until the first update under the new plan, less the usual one (the pause); what the run
                 itself says of it, part by part; and the limit: the bytes that changed hands over what two processes
                 here can send each other through a socket, and the filling.
--what variants  Two processes, each on a processor of its own, train a small network, and an intruder is on the second
                 one's processor for half of the run. Every way of `--replan`, and an oracle, which is told when the
                 intruder comes and goes, in turn, `--rounds` times: samples a second, and live's over each other's in
                 the same round, as lower quartile, median and upper quartile. Beneath it, the paces of all runs before
                 the intruder came, when all trained alike: what the machine varies by itself. `--ways live oracle`
                 trains under those alone, so that runs can be longer: who must notice and prepare loses a second or two
                 of each visit, and after it.
--what replayed  The same where nothing but the plan and the slow device counts: processes sleep in place of computing,
                 and the second takes twice as long for half of the run.
--what all       One after the other, which is what is done where nothing is said: some fifteen minutes on two cores.
--what alarms    Two processes train and nobody disturbs them: how often the watch that `--replan live` decides by takes
                 this machine's own noise for a lasting change, by rank and minibatch; at most four minutes.
"""
