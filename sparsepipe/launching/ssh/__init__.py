"""The ssh launcher: workers on the hosts of a cluster, by agents that end with the connection to whoever launched."""
