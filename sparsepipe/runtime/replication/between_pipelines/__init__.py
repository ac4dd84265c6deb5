"""How the copies of a network in several pipelines are averaged: weights from rank to rank, no process group."""
