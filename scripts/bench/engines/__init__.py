"""Time the engines against each other and bare products: `python scripts/bench_engines.py [--quick] [--json FILE]`.

For each number of threads and each case, in a process of its own whose thread pools all have that size:

    steps          one training step (forward, loss, backward; then with SGD) of each network on each kind of clouds:
                   `native`, `minkowski` where it imports, `native` under bf16 autocast, and `native` with the kernel
                   maps of the minibatch already made, whose difference is what kernel maps cost; and the matrix
                   products of all its convolutions alone, which no engine that multiplies in float32 can do without:
                   `minkowski_step_over_products` is the most that it could be faster by. `minkowski` is the library as
                   it installs; `minkowski-passive`, with several threads, runs in another process, whose threads are
                   told to sleep while they wait, as this project's workers tell them (sparsepipe/util/host/cpu.py)
    convolutions   forward and backward of each convolution of the first case against its matrix products alone, on rows
                   already gathered and never added up; and against these and the rows' own moves: each gathered and
                   added up once by torch, which is what products on gathered rows cannot do without
                   `products` are torch.mm's; oneDNN's, which are faster on some processors, are there to compare
    memory         the most resident memory a training step takes over that of the process before the network was made,
                   each engine in a process of its own: five of each, or as many as `--rounds` says if that is fewer,
                   for what MinkowskiEngine's threads ask the heap for, and when, differs by some percent

Competitors take turns, round by round. Numbers are medians with quartiles; a ratio is the median of the rounds' own
ratios, so that what else the machine does meets both sides; with one thread, processor time leaves most of it out.
Real clouds are looked for in the folders of SPARSEPIPE_DATA, else beside the repository; without them synthetic shapes
stand in, and the output says so.
"""
