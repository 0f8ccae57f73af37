"""Labels added, removed and renamed: a new model with the rows of the labels that stay."""

import copy
import logging
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import LabelSpace
from glocal_xml.data.dataset import warn_of_names
from glocal_xml.experts import lexical_with_labels, log_frequencies, memory_with_labels
from glocal_xml.modeling import AdaptiveLabelClusters, XMTCPreTrainedModel
from glocal_xml.modeling.configuration_base import EXPERTS
from glocal_xml.modeling.label_tree import CandidateTree

from .similar_names import most_similar
from .table_rows import cluster_rows, label_tables, tree_rows

logger = logging.getLogger(__name__)

_OF_EXPERTS = (*EXPERTS, "log_frequencies")
# New labels of which the log tells what they start as.
_TOLD = 20
# Cosine of two names from which on one says something about the other.
_SIMILAR = 0.3


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
                "No label has a name like that of %d new ones, such as %r: their first scores mean nothing; train on "
                "texts that have them before you use them",
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
