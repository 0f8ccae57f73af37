"""The parts of the logit of a blend: what words, the whole text, similar texts and the label itself add to it."""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from glocal_xml.modeling import LexicalExpert, XMTCPreTrainedModel
from glocal_xml.modeling.encoder import evaluation_mode
from glocal_xml.modeling.experts import BIAS, DENSE, FREQUENCY, LEXICAL, MEMORY, add_branch
from glocal_xml.modeling.label_scores import product_logits

from .explanation import SimilarText
from .words import EncodedText

TREE = "tree"
# How many similar texts to name, of all and of those that have a label.
_SIMILAR = 5
# What the texts that a memory finds have in common with a text.
_MEMORIES = {MEMORY: "words", DENSE: "meaning"}


@dataclass
class LogitParts:
    """Addends of the logits of labels."""

    # (labels, tokens): of those that the encoder reads, then, where the lexical expert takes part, of the whole text.
    of_tokens: Tensor
    # What has no words, (labels,) each, by its name among the weights of the blend; "tree" for the way down a tree.
    parts: dict[str, Tensor]
    # What is there before anything is read, (labels,).
    bias: Tensor


def has_evidence(model: XMTCPreTrainedModel) -> bool:
    """Whether the branches with attention add up over words."""
    return getattr(model.config, "attention_scoring", None) == "evidence"


@torch.no_grad()
def label_biases(model: XMTCPreTrainedModel, branch: str, label_ids: Tensor) -> Tensor:
    """Biases of labels in a branch, of shape (labels,)."""
    if not model.config.label_bias:
        return torch.zeros(len(label_ids), dtype=torch.double)
    rows, shard = model.branch_heads()[branch].label_embeddings.read(), getattr(model, "label_shard", None)
    if shard is None:
        return rows.biases(label_ids).cpu().double()
    # Labels may be split over processes, each with the biases of its own.
    return shard.collect(lambda ids: rows.biases(ids).unsqueeze(0), label_ids)[0].cpu().double()


@torch.no_grad()
def tree_paths(model: XMTCPreTrainedModel, label_ids: Tensor, encoded: EncodedText) -> Tensor | None:
    """Logits of the ways down the label tree to the clusters of labels, (labels,); none without a tree."""
    if not getattr(model.config, "tree_levels", None):
        return None
    with evaluation_mode(model):
        scores = model(**encoded.head_inputs, output_scores=True).scores
    # Where there are experts or a blend, the heads are a part of the scores.
    return getattr(scores, "heads", scores).paths(label_ids.unsqueeze(0))[0].cpu().double()


def takes_part(name: str, weights: dict[str, float]) -> bool:
    """Whether a branch counts in a blend at all."""
    return any(weights.get(key) for key in (name, f"{name}_bend", f"{name}_vote"))


def word_branches(model: XMTCPreTrainedModel) -> list[str]:
    """The branches of a blend that add up over words."""
    names = [name for name, head in model.branch_heads().items() if has_evidence(model) and hasattr(head, "key")]
    names += [LEXICAL] if model.lexical is not None else []
    return [name for name in names if takes_part(name, model.config.blend["weights"])]


@torch.no_grad()
def blended_logit(model: XMTCPreTrainedModel, encoded: EncodedText, label_ids: Tensor) -> LogitParts:
    """What adds up to the final logits of labels, (labels,), for one text."""
    weights = model.config.blend["weights"]
    with evaluation_mode(model):
        logits = model(**encoded.inputs, candidate_ids=label_ids).branch_logits[0]  # (branches, labels)
    by_words = word_branches(model)
    # In double precision on the CPU: sums over many tokens then lose nothing of what the model computed.
    of_heads = torch.zeros(len(label_ids), len(encoded.head_spans), dtype=torch.double)
    of_text = of_heads[:, :0]
    bias = torch.full((len(label_ids),), weights.get(BIAS, 0.0), dtype=torch.double)
    parts: dict[str, Tensor] = {}
    for name, values in zip(model.branch_names, logits.cpu().double(), strict=True):
        weight = weights.get(name, 0.0)
        if name == LEXICAL and name in by_words:
            of_branch, start = lexical_contributions(model.lexical, label_ids, encoded.text_ids[0])
            of_branch, start = of_branch.cpu().double(), start.cpu().double()
            first, last = (add_branch(torch.zeros_like(start), name, ends, weights) for ends in (start, values))
            # Where the slope changes between the two, all tokens share the one that leads from end to end.
            of_text = of_branch * slope(first, last, of_branch.sum(dim=1))
            bias += first
        elif name in by_words:
            of_branch = model.word_contributions(label_ids, **encoded.head_inputs, branch=name)[0].cpu().double()
            own = label_biases(model, name, label_ids)
            if (paths := tree_paths(model, label_ids, encoded)) is not None:
                # No sum: reached from the logit without tokens by a step which these share, as in the lexical expert.
                start, rise = product_logits(paths, own), of_branch.sum(dim=1)
                of_branch = of_branch * slope(start, product_logits(paths, own + rise), rise)
                parts[TREE] = parts.get(TREE, 0.0) + weight * (start - own)
            of_heads += weight * of_branch
            bias += weight * own
        elif takes_part(name, weights):
            parts[name] = add_branch(torch.zeros_like(values), name, values, weights)
    if weights.get(FREQUENCY):
        parts[FREQUENCY] = weights[FREQUENCY] * model.log_frequencies[label_ids].cpu().double()
    return LogitParts(torch.cat([of_heads, of_text], dim=1), parts, bias)


@torch.no_grad()
def lexical_contributions(expert: LexicalExpert, label_ids: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """
    What each token of one text adds to the logits of labels, (labels, tokens), and what is there without any token,
    (labels,); together they sum to the logits. A pair counts half for each of its tokens.

    With a tree the logit is no sum of margins. It is reached from that without tokens by one step for each level, and
    each step is shared out as the tokens share in the margin of its level.
    """
    nodes, margins = label_ids, []
    for level in range(len(expert.tables) - 1, -1, -1):
        biases, shares = getattr(expert, f"biases_{level}")[nodes], _shares(expert, level, nodes, token_ids)
        margins.append((expert.scale(level) * biases, expert.scale(level) * shares))
        nodes = getattr(expert, f"parents_{level}")[nodes] if level else nodes
    reached = [biases for biases, _ in margins]
    start = logit = reduce(product_logits, reached)
    total = torch.zeros_like(margins[0][1])
    for level, (biases, shares) in enumerate(margins):
        rise = shares.sum(dim=1)
        reached[level] = biases + rise
        next_logit = reduce(product_logits, reached)
        total, logit = total + shares * slope(logit, next_logit, rise), next_logit
    return total, start


def slope(start: Tensor, end: Tensor, rise: Tensor) -> Tensor:
    """By how much a logit rises with the sum of what tokens add, from end to end, (labels, 1)."""
    return torch.where(rise.abs() > 1e-12, (end - start) / rise, 0.0).unsqueeze(1)


def _shares(expert: LexicalExpert, level: int, rows: Tensor, token_ids: Tensor) -> Tensor:
    """What each token adds to the margins of nodes of a level, of shape (nodes, tokens)."""
    features, values = expert.counter(token_ids[None])
    which, entry_rows, products = expert.tables[level].entries(features[0], values[0])
    of_feature = products.new_zeros(len(rows), features.shape[1])
    for i, row in enumerate(rows.tolist()):
        mine = entry_rows == row
        of_feature[i].index_add_(0, which[mine], products[mine])
    # Each occurrence of a feature has an equal part of it.
    kinds = expert.counter.features(token_ids[None])[0].view(-1, len(token_ids))
    singles, *further = (_of_occurrences(found, features[0], values[0], of_feature) for found in kinds)
    if len(expert.counter.pair_keys):
        halves = further.pop(0) / 2
        singles += halves
        singles[:, 1:] += halves[:, :-1]
    # What remains are the first tokens, which count twice.
    return sum(further, singles)


def _of_occurrences(found: Tensor, features: Tensor, values: Tensor, of_feature: Tensor) -> Tensor:
    kept = values.nonzero()[:, 0]
    shares = of_feature.new_zeros(len(of_feature), len(found))
    if len(kept):
        # Distinct features are in order; a table of tokens and features would not fit for a book.
        places = torch.searchsorted(features[kept], found).clamp(max=len(kept) - 1)
        is_known = features[kept][places] == found
        places = kept[places[is_known]]
        shares[:, is_known] = of_feature[:, places] / torch.bincount(places)[places]
    return shares


@torch.no_grad()
def similar_texts(model: XMTCPreTrainedModel, encoded: EncodedText, label_ids: Tensor) -> list[SimilarText]:
    """
    The texts of each memory that are most similar, and the most similar ones that have one of the labels; best first.
    A text that both memories find is named once, with the higher similarity.
    """
    named = [model.label_names[label] for label in label_ids.tolist()]
    found: list[SimilarText] = []
    for name, by in _MEMORIES.items():
        memory = getattr(model, name)
        if memory is None or not takes_part(name, model.config.blend["weights"]):
            continue
        read = encoded.text_ids if name == MEMORY else model.document_embeddings(**encoded.head_inputs)
        similarities, rows = (values[0].tolist() for values in memory.similar(read))
        numbers = memory.text_numbers[rows].tolist()
        voting = [
            SimilarText(number, similarity, [model.label_names[label] for label in memory.labels_of(row)], by)
            for similarity, row, number in zip(similarities, rows, numbers, strict=True)
            if similarity > 0
        ]
        groups = [voting, *([text for text in voting if label in text.labels] for label in named)]
        kept = {id(text) for group in groups for text in group[:_SIMILAR]}
        found += [text for text in voting if id(text) in kept]
    merged: dict[tuple[int, tuple[str, ...]], SimilarText] = {}
    for text in sorted(found, key=lambda text: -text.similarity):
        # Names of labels have no number of their own.
        first = merged.setdefault((text.number, tuple(text.labels)), text)
        if first.by != text.by:
            first.by = " and ".join(_MEMORIES.values())
    return list(merged.values())
