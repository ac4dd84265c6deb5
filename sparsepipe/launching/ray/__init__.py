"""The Ray launcher: workers where Ray has room for them, by the agents that the ssh launcher has, without `ssh`."""
