"""Networks of PyTorch Geometric: a graph's nodes and edges in, scores of nodes or of graphs out."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Family = tuple[nn.Module, list[Any]]

WIDTH = 8
_SIZES = ((2, 12), (3, 15), (4, 10))  # graphs and nodes of each


def graphs(*more: str) -> list[dict[str, Tensor]]:
    """Return minibatches of graphs, as a loader joins them. `more`: edge_attr, edge_type, batch, pos or z."""
    minibatches = []
    for number, nodes in _SIZES:
        total = number * nodes
        edges = torch.cat([torch.randint(0, nodes, (2, 3 * nodes)) + i * nodes for i in range(number)], 1)
        given = {"x": torch.randn(total, 5), "edge_index": edges}
        others = {
            "edge_attr": torch.randn(edges.shape[1], 3),
            "edge_type": torch.randint(0, 3, (edges.shape[1],)),
            "batch": torch.arange(number).repeat_interleave(nodes),
            "pos": torch.randn(total, 3),
        }
        minibatches.append(given | {name: others[name] for name in more})
    return minibatches


class Layers(nn.Module):
    """Layers of one kind with a norm between them; scores of nodes, or of graphs if there is a `batch`."""

    def __init__(self, make: Callable[[int, int], nn.Module], *, edges: str = "", pooled: bool = False) -> None:
        super().__init__()
        widths = [5, WIDTH, WIDTH, WIDTH]
        self.layers = nn.ModuleList(make(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.norms = nn.ModuleList(nn.BatchNorm1d(b) for b in widths[1:])
        self.head, self.edges, self.pooled = nn.Linear(WIDTH, 4), edges, pooled

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        edge_type: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        from torch_geometric.nn import global_mean_pool

        more = {"edge_attr": (edge_attr,), "edge_type": (edge_type,), "": ()}[self.edges]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x, edge_index, *more)).relu()
        if self.pooled:
            x = global_mean_pool(x, batch)
        return self.head(x)


def layers(name: str, *more: str, edges: str = "", pooled: bool = False, **options: Any) -> Callable[[], Family]:
    def build() -> Family:
        import torch_geometric.nn as graph_nn

        kind = getattr(graph_nn, name)
        return Layers(lambda a, b: kind(a, b, **options), edges=edges, pooled=pooled), graphs(*more)

    return build


def model(name: str, **options: Any) -> Callable[[], Family]:
    """Return a builder of one of the library's own models."""

    def build() -> Family:
        import torch_geometric.nn as graph_nn

        return getattr(graph_nn, name)(5, WIDTH, num_layers=3, out_channels=4, **options), graphs()

    return build


def isomorphism() -> Family:
    import torch_geometric.nn as graph_nn

    def make(a: int, b: int) -> nn.Module:
        inner = nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))
        return graph_nn.GINConv(inner, train_eps=True)

    return Layers(make, pooled=True), graphs("batch")


def edge_convolution() -> Family:
    import torch_geometric.nn as graph_nn

    return Layers(lambda a, b: graph_nn.EdgeConv(nn.Sequential(nn.Linear(2 * a, b), nn.ReLU()), aggr="max")), graphs()


def edge_network() -> Family:
    import torch_geometric.nn as graph_nn

    def make(a: int, b: int) -> nn.Module:
        return graph_nn.NNConv(a, b, nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, a * b)))

    return Layers(make, edges="edge_attr", pooled=True), graphs("edge_attr", "batch")


def pooling(name: str) -> Callable[[], Family]:
    """Return a builder of a network that keeps the best nodes after each layer."""

    def build() -> Family:
        import torch_geometric.nn as graph_nn

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = graph_nn.GraphConv(5, WIDTH), graph_nn.GraphConv(WIDTH, WIDTH)
                self.first, self.second = (getattr(graph_nn, name)(WIDTH, ratio=0.6) for _ in range(2))
                self.head = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.2), nn.Linear(WIDTH, 4))

            def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
                def pooled(x: Tensor, batch: Tensor) -> Tensor:
                    return torch.cat([graph_nn.global_max_pool(x, batch), graph_nn.global_mean_pool(x, batch)], 1)

                x = self.a(x, edge_index).relu()
                x, edge_index, _, batch, _, _ = self.first(x, edge_index, None, batch)
                seen = pooled(x, batch)
                x = self.b(x, edge_index).relu()
                x, edge_index, _, batch, _, _ = self.second(x, edge_index, None, batch)
                return self.head(seen + pooled(x, batch)).log_softmax(-1)

        return Net(), graphs("batch")

    return build


def u_net() -> Family:
    import torch_geometric.nn as graph_nn

    return graph_nn.GraphUNet(5, WIDTH, 4, depth=2, pool_ratios=0.6), graphs("batch")


def sequence() -> Family:
    """torch_geometric.nn.Sequential with its text of arguments, and jumping knowledge."""
    import torch_geometric.nn as graph_nn

    steps = [
        (nn.Dropout(0.2), "x -> x"),
        (graph_nn.GCNConv(5, WIDTH), "x, edge_index -> x1"),
        nn.ReLU(inplace=True),
        (graph_nn.GCNConv(WIDTH, WIDTH), "x1, edge_index -> x2"),
        nn.ReLU(inplace=True),
        (lambda x1, x2: [x1, x2], "x1, x2 -> xs"),
        (graph_nn.JumpingKnowledge("cat"), "xs -> x"),
        (graph_nn.global_mean_pool, "x, batch -> x"),
        nn.Linear(2 * WIDTH, 4),
    ]
    return graph_nn.Sequential("x, edge_index, batch", steps), graphs("batch")


def deep() -> Family:
    """DeepGCN's residual layers of GENConv with checkpoints in training."""
    import torch_geometric.nn as graph_nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nodes, self.edges = nn.Linear(5, WIDTH), nn.Linear(3, WIDTH)
            self.layers = nn.ModuleList(
                graph_nn.DeepGCNLayer(
                    graph_nn.GENConv(WIDTH, WIDTH, aggr="softmax", learn_t=True, num_layers=2),
                    graph_nn.LayerNorm(WIDTH),
                    nn.ReLU(),
                    block="res+",
                    dropout=0.1,
                    ckpt_grad=i % 2,
                )
                for i in range(3)
            )
            self.head = nn.Linear(WIDTH, 4)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            x, e = self.nodes(x), self.edges(edge_attr)
            x = self.layers[0].conv(x, edge_index, e)
            for layer in self.layers[1:]:
                x = layer(x, edge_index, e)
            return self.head(self.layers[0].act(self.layers[0].norm(x)))

    return Net(), graphs("edge_attr")


def transformer() -> Family:
    """GPS: message passing and attention over each graph's nodes."""
    import torch_geometric.nn as graph_nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nodes = nn.Linear(5, WIDTH)
            self.layers = nn.ModuleList(
                graph_nn.GPSConv(WIDTH, graph_nn.GCNConv(WIDTH, WIDTH), heads=2) for _ in range(2)
            )
            self.head = nn.Linear(WIDTH, 4)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x = self.nodes(x)
            for layer in self.layers:
                x = layer(x, edge_index, batch)
            return self.head(graph_nn.global_add_pool(x, batch))

    return Net(), graphs("batch")


def set_to_set() -> Family:
    import torch_geometric.nn as graph_nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gru = graph_nn.GraphConv(5, WIDTH), nn.GRU(WIDTH, WIDTH)
            self.again = graph_nn.GraphConv(WIDTH, WIDTH)
            self.pool, self.head = graph_nn.Set2Set(WIDTH, processing_steps=2), nn.Linear(2 * WIDTH, 4)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            out = self.conv(x, edge_index).relu()
            h = out.unsqueeze(0)
            for _ in range(2):
                m = self.again(out, edge_index).relu()
                out, h = self.gru(m.unsqueeze(0), h)
                out = out.squeeze(0)
            return self.head(self.pool(out, batch))

    return Net(), graphs("batch")


def heterogeneous() -> Family:
    """Dictionaries of nodes and edges by type through HeteroConv."""
    import torch_geometric.nn as graph_nn

    kinds = [("paper", "cites", "paper"), ("author", "writes", "paper")]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = graph_nn.HeteroConv({kind: graph_nn.SAGEConv((5, 5), WIDTH) for kind in kinds}, aggr="sum")
            self.b = graph_nn.SAGEConv(WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, 4)

        def forward(self, papers: Tensor, authors: Tensor, cites: Tensor, writes: Tensor) -> Tensor:
            found = self.a({"paper": papers, "author": authors}, {kinds[0]: cites, kinds[1]: writes})
            return self.head(self.b(found["paper"].relu(), cites).relu())

    minibatches = []
    for papers, authors in ((20, 8), (30, 10), (25, 6)):
        writes = torch.stack([torch.randint(0, authors, (40,)), torch.randint(0, papers, (40,))])
        cites = torch.randint(0, papers, (2, 50))
        minibatches.append(
            {"papers": torch.randn(papers, 5), "authors": torch.randn(authors, 5), "cites": cites, "writes": writes}
        )
    return Net(), minibatches


NETWORKS: Mapping[str, Callable[[], Family]] = {
    "graph: GCN": model("GCN", dropout=0.1),
    "graph: GAT": model("GAT", heads=2, jk="cat"),
    "graph: GraphSAGE": model("GraphSAGE", norm="layer_norm"),
    "graph: GIN": model("GIN", jk="lstm"),
    "graph: PNA": model("PNA", aggregators=["mean", "max"], scalers=["identity", "amplification"], deg=torch.arange(9)),
    "graph: EdgeCNN": model("EdgeCNN"),
    "graph: GINConv": isomorphism,
    "graph: EdgeConv": edge_convolution,
    "graph: NNConv": edge_network,
    "graph: TransformerConv": layers("TransformerConv", heads=2, concat=False),
    "graph: TAGConv": layers("TAGConv", "batch", pooled=True),
    "graph: ChebConv": layers("ChebConv", K=2),
    "graph: ARMAConv": layers("ARMAConv", num_stacks=2),
    "graph: GATv2Conv": layers("GATv2Conv", heads=2, concat=False),
    "graph: RGCNConv": layers("RGCNConv", "edge_type", edges="edge_type", num_relations=3),
    "graph: MFConv": layers("MFConv"),
    "graph: LEConv": layers("LEConv"),
    "graph: ResGatedGraphConv": layers("ResGatedGraphConv"),
    "graph: ClusterGCNConv": layers("ClusterGCNConv"),
    "graph: TopKPooling": pooling("TopKPooling"),
    "graph: SAGPooling": pooling("SAGPooling"),
    "graph: GraphUNet": u_net,
    "graph: Sequential": sequence,
    "graph: DeepGCN": deep,
    "graph: GPS": transformer,
    "graph: Set2Set": set_to_set,
    "graph: HeteroConv": heterogeneous,
}
