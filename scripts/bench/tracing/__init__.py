"""How many networks can be cut, each competitor under its own name: `python scripts/bench_tracing.py`.

The networks are those of `tests/traced_zoo.py`, in float64 on one thread. A network counts as cut where it comes in as
many stages as asked, and one minibatch through them, on values detached where they cross and with gradients handed
back, gives the module's outputs and the gradient of every parameter as it trains. Ours must do so in evaluation, too,
and leave the same buffers. torch's pipeline() cuts before modules that are named: it is given several choices.

The networks of `families.py` are such as people bring: transformers, MinkowskiEngine, Python between layers. Each is
cut in two by its layers' time, and compared with plain torch on three minibatches of other sizes, in both modes.
"""
