"""Which old row each row of a label table, of a cluster or of a tree comes from when labels come and go."""

import torch
from torch import nn

from glocal_xml.modeling import AdaptiveLabelClusters
from glocal_xml.modeling.label_tree import CandidateTree


def label_tables(head: nn.Module) -> list[nn.Module]:
    """The tables of a head that have a row per label."""
    return [module for module in head.modules() if hasattr(module, "read")]


def cluster_rows(
    head: AdaptiveLabelClusters, origins: torch.Tensor
) -> tuple[dict[nn.Module, torch.Tensor], list[int]]:
    """
    Old rows of the table of each cluster, and the cluster of each new label: that of the old label that it comes from,
    `origins`, (new labels,).
    """
    rows, places = {}, head.label_places[origins]
    cluster_of = torch.zeros_like(places)
    for cluster, run in enumerate(head.runs):
        inside = (places >= run.start) & (places < run.stop)  # (new labels,)
        if not inside.any():
            raise ValueError(
                f"No label of cluster {cluster}, counted from the most frequent, is left: APLC-XLNet needs at least "
                "one in each; keep one of them, or train a new model."
            )
        cluster_of[inside] = cluster
        # Within a cluster labels stand in the order of their ids.
        owner = head.tails[cluster - 1] if cluster else head
        rows[owner.label_embeddings] = places[inside] - run.start
    return rows, cluster_of.tolist()


def tree_rows(
    tree: CandidateTree, origins: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor, list[torch.Tensor]]:
    """
    The tree without nodes that have no label: where children start at each level, the order of the labels, and the old
    nodes that are left at each level. `origins` is as in [`cluster_rows`].
    """
    parents = tree.label_clusters[origins]
    label_order = parents.argsort(stable=True)
    child_starts, nodes_left = [], []
    for level in range(len(tree.level_sizes) - 1, -1, -1):
        nodes, numbers = parents.unique(return_counts=True)
        child_starts.append(torch.cat([numbers.new_zeros(1), numbers.cumsum(0)]))
        nodes_left.append(nodes)
        if level > 0:
            parents = torch.searchsorted(tree.child_starts(level - 1), nodes, right=True) - 1
    return child_starts[::-1], label_order, nodes_left[::-1]
