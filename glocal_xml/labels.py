"""Labels added, removed and renamed: a new model with the rows of the labels that stay."""

import copy
import logging
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import LabelSpace
from glocal_xml.data.dataset import warn_of_names
from glocal_xml.experts import lexical_with_labels, log_frequencies, memory_with_labels
from glocal_xml.experts.token_rows import sparse_rows, whole_text_ids
from glocal_xml.modeling import AdaptiveLabelClusters, XMTCPreTrainedModel
from glocal_xml.modeling.configuration_base import EXPERTS
from glocal_xml.modeling.encoder import encode_texts, evaluation_mode, position_limit
from glocal_xml.modeling.label_tree import CandidateTree

logger = logging.getLogger(__name__)

_OF_EXPERTS = (*EXPERTS, "log_frequencies")
# New labels of which the log tells what they start as.
_TOLD = 20
# Cosine of two names from which on one says something about the other.
_SIMILAR = 0.3
# Tokens of a name that are read, and names of a batch.
_TOKENS, _NAMES_AT_A_TIME = 64, 128


@torch.no_grad()
def edit_labels(
    model: XMTCPreTrainedModel,
    label_space: LabelSpace,
    tokenizer: PreTrainedTokenizerBase,
    *,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
) -> tuple[XMTCPreTrainedModel, LabelSpace]:
    """
    A model with other labels: those that stay keep their scores and their order, new ones come behind them.

    In the heads a new label starts as a copy of the label with the most similar name, weights, bias and cluster alike:
    until it is trained it is found wherever that one is. In APLC-XLNet it is like the most similar of the last, rarest
    cluster. Labels that are removed count among the similar ones, so that one can be split into several. Clusters of a
    label tree that have no label any more are taken out.

    The experts know nothing of a new label yet. Texts without any label left leave the memory.

    Args:
        model: A trained model; it is left as it is.
        label_space: Its label space (`LabelSpace.load(folder)`).
        tokenizer: Its tokenizer, which reads the names.
        add, remove, rename: Names of new labels, of labels to take out, and new names by old ones.

    Returns:
        The new model and its label space, in which new labels have no training text yet. The blend is kept.
    """
    if isinstance(add, str) or isinstance(remove, str):
        raise ValueError("`add` and `remove` must be lists of names, got one string; give `[name]`.")
    add, remove = list(add), list(remove)
    heads, tree = list(model.branch_heads().values()), getattr(model, "label_tree", None)
    clusters = heads[0] if heads and isinstance(heads[0], AdaptiveLabelClusters) else None
    _check_model(model, label_space)
    kept, new_space = plan_changes(label_space, add, remove, rename or {})

    # The old label that each new one comes from.
    origins = torch.tensor(kept, dtype=torch.long, device=model.device)
    if add:
        known = torch.arange(label_space.num_labels, device=model.device)
        known = known if clusters is None else clusters.label_order[clusters.runs[-1]]
        places, similarities = most_similar(model, tokenizer, add, [label_space.names[i] for i in known.tolist()])
        nearest = known[places]
        origins = torch.cat([origins, nearest])
        # Experts have nothing to copy.
        for name, label in zip(add[: _TOLD if heads else 0], nearest, strict=False):
            logger.info("%r starts as %r", name, label_space.names[label])
        unlike = [name for name, similarity in zip(add, similarities.tolist(), strict=True) if similarity < _SIMILAR]
        if unlike:
            logger.warning(
                "No label has a name like that of %d new ones, such as %r: their scores mean nothing until the model "
                "learns texts that have them",
                *(len(unlike), unlike[0]),
            )

    config = copy.deepcopy(model.config)
    config.num_labels = len(origins)
    # Experts are given to the new model when they have its labels.
    config.lexical = config.memory = config.dense = config.blend = None
    if clusters is None:
        rows = dict.fromkeys((table for head in heads for table in label_tables(head)), origins)
    else:
        rows, cluster_of = cluster_rows(clusters, origins)
        config.cluster_proportions = [cluster_of.count(i) / len(origins) for i in range(len(clusters.sizes))]
    if tree is not None:
        child_starts, label_order, nodes_left = tree_rows(tree, origins)
        config.tree_levels = [len(nodes) for nodes in nodes_left]
        for head, nodes in zip(model.level_heads().values(), nodes_left, strict=True):
            rows |= dict.fromkeys(label_tables(head), nodes)

    new = type(model)(config).to(device=model.device, dtype=model.dtype).train(model.training)
    new.set_label_names(new_space.names)
    if tree is not None:
        new.set_label_tree(child_starts, label_order)
    if clusters is not None:
        # As if the labels of a cluster were more frequent than those of the next: each comes to where it was.
        new.set_label_counts([len(clusters.sizes) - cluster for cluster in cluster_of])
    elif any(new_space.counts):
        new.set_label_counts(new_space.counts)
    _copy_weights(model, new, rows)
    _give_experts(model, new, kept, origins[len(kept) :].tolist(), new_space)
    return new, new_space


def plan_changes(
    label_space: LabelSpace, add: Sequence[str], remove: Sequence[str], rename: Mapping[str, str]
) -> tuple[list[int], LabelSpace]:
    """
    Checks what is asked for against the labels there are. Returns the old ids of those that stay, in their order, and
    the label space after the change, in which new labels come behind them with a count of 0.
    """
    known, removed = set(label_space.names), set(remove)
    for what, names in {"remove": remove, "rename": rename}.items():
        missing = [name for name in names if name not in known]
        if missing:
            raise ValueError(
                f"`{what}` names {len(missing)} labels that the model does not have, such as {missing[0]!r}; "
                "its labels are in labels.txt."
            )
    both = sorted(removed & {*add, *rename})
    if both:
        raise ValueError(f"{both[0]!r} is to be removed and to be added or renamed too: leave one of them out.")
    kept = [i for i, name in enumerate(label_space.names) if name not in removed]
    names = [rename.get(label_space.names[i], label_space.names[i]) for i in kept]
    taken = sorted(set(add) & set(names))
    if taken:
        raise ValueError(f"`add` holds {taken[0]!r}, which is a label of the model already: leave it out.")
    if not (add or remove or rename):
        raise ValueError("No change of labels is asked for: give labels to add, to remove or to rename.")
    warn_of_names([*names, *add], names)
    counts = [*(label_space.counts[i] for i in kept), *[0] * len(add)]
    return kept, LabelSpace([*names, *add], counts, label_space.num_texts)


def _check_model(model: XMTCPreTrainedModel, label_space: LabelSpace) -> None:
    if label_space.num_labels != model.config.num_labels:
        raise ValueError(
            f"The label space has {label_space.num_labels} labels, the model {model.config.num_labels}: load both "
            "from one folder."
        )
    if any(hasattr(parameter, "to_local") for parameter in model.parameters()):
        raise ValueError("The labels of this model are split over processes: load it whole to change them.")
    head = next(iter(model.branch_heads().values()), None)
    if isinstance(head, AdaptiveLabelClusters) and not head.is_clustered:
        raise ValueError("This model was never told which labels are frequent, and so is not trained: train it first.")
    if getattr(model, "label_tree", None) is not None:
        model.label_tree.check()


def _copy_weights(old: XMTCPreTrainedModel, new: XMTCPreTrainedModel, rows: dict[nn.Module, torch.Tensor]) -> None:
    """Copies all but the experts, tables by their rows; not what the new model was told of its labels."""
    told, tables = {"label_counts"}, {}
    for prefix, module in old.named_modules():
        if isinstance(module, CandidateTree | AdaptiveLabelClusters):
            told |= {f"{prefix}.{name}" for name, _ in module.named_buffers(recurse=False)}
        if module in rows:
            tables |= {f"{prefix}.{name}": rows[module] for name, _ in module.named_parameters()}
    state = new.state_dict()
    for name, values in old.state_dict().items():
        if name not in told and name.split(".")[0] not in _OF_EXPERTS:
            state[name].copy_(values[tables[name]] if name in tables else values)


def _give_experts(
    old: XMTCPreTrainedModel, new: XMTCPreTrainedModel, kept: list[int], nearest: list[int], label_space: LabelSpace
) -> None:
    """The experts and the blend of a model with the labels that are left and, behind them, new ones."""
    if old.lexical is not None:
        new.set_expert("lexical", *lexical_with_labels(old.lexical, old.config.lexical, kept, nearest))
    for name in {"memory", "dense"} & old.text_experts().keys():
        new.set_expert(name, *memory_with_labels(getattr(old, name), kept, len(nearest)))
    if old.config.blend is not None:
        frequencies = old.log_frequencies[kept]
        of_new = torch.as_tensor(log_frequencies(label_space)[len(kept) :]).to(frequencies)
        new.set_blend(copy.deepcopy(old.config.blend), torch.cat([frequencies, of_new]))


@torch.no_grad()
def most_similar(
    model: XMTCPreTrainedModel, tokenizer: PreTrainedTokenizerBase, new_names: Sequence[str], names: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    The place in `names` of the one most similar to each new name, and how similar it is, both (new names,).

    Names are compared by the cosine of their mean token states in the last layer; without an encoder, by that of the
    tokens that they have in common, rare ones counting more.
    """
    if model.encoder is None:
        counter = copy.deepcopy(next(iter(model.text_experts().values())).counter).cpu()
        # Of length one, of shape (names, features).
        new, known = (sparse_rows(whole_text_ids(group, tokenizer), counter) for group in (new_names, names))
        similar = new @ known.T
        places, values = similar.argmax(axis=1), similar.max(axis=1).toarray()
        return tuple(torch.from_numpy(np.asarray(found).ravel()).to(model.device) for found in (places, values))
    new, known = (_name_embeddings(model, tokenizer, group) for group in (new_names, names))
    best = [(rows @ known.T).max(dim=1) for rows in new.split(_NAMES_AT_A_TIME)]
    return torch.cat([found.indices for found in best]), torch.cat([found.values for found in best])


def _name_embeddings(
    model: XMTCPreTrainedModel, tokenizer: PreTrainedTokenizerBase, names: Sequence[str]
) -> torch.Tensor:
    """Of length one, of shape (names, hidden)."""
    last, longest = model.config.num_hidden_layers, min(_TOKENS, position_limit(model.encoder) or _TOKENS)
    # Names of like length together, so that little is padding.
    order = sorted(range(len(names)), key=lambda i: len(names[i]))
    result = torch.zeros(len(names), model.config.hidden_size, device=model.device, dtype=model.dtype)
    with evaluation_mode(model):
        for start in tqdm(range(0, len(names), _NAMES_AT_A_TIME), desc="reading names", disable=None):
            places = order[start : start + _NAMES_AT_A_TIME]
            options = {"padding": True, "truncation": True, "max_length": longest, "return_tensors": "pt"}
            batch = tokenizer([names[i] for i in places], **options).to(model.device)
            encoded = encode_texts(model.encoder, {last}, batch["input_ids"], batch["attention_mask"])
            mask = encoded.mask.unsqueeze(-1)  # (names, tokens, 1)
            states = encoded.hidden_states[last]  # (names, tokens, hidden)
            result[places] = (states * mask).sum(dim=1) / mask.sum(dim=1)
    return nn.functional.normalize(result, dim=1)


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
