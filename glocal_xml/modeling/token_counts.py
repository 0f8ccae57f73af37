"""Texts as sparse rows: from token ids to weighted counts, and products of these with tables of sparse rows."""

import warnings

import torch
from torch import Tensor, nn

# Products of texts and sparse rows are made in pieces of about this many entries.
_PIECE_ENTRIES = 2**22


class TextCounter(nn.Module):
    """
    From token ids to a sparse row of unit length: logarithmic counts of tokens, of frequent pairs of neighbouring
    tokens, and of the first tokens once more, times a weight for each (inverse document frequency). What has the
    weight 0, such as special tokens, and what is beyond the vocabulary is ignored.

    Args:
        tokens: Size of the vocabulary.
        pairs: Number of pairs of tokens; they come behind the tokens.
        lead: How many of the first tokens of a text, where its title often is, are features of their own too; these
            come behind the pairs.
    """

    def __init__(self, tokens: int, pairs: int = 0, lead: int = 0):
        super().__init__()
        self.tokens, self.lead = tokens, lead
        self.register_buffer("weights", torch.zeros(tokens + pairs + (tokens if lead else 0)))
        # first id * tokens + second id, ascending
        self.register_buffer("pair_keys", torch.zeros(pairs, dtype=torch.long))

    def features(self, token_ids: Tensor) -> Tensor:
        """
        The feature of each token; then, where there are pairs, of each pair that starts with it; then, where the first
        tokens count apart, of each of them: (texts, tokens) for each kind, side by side; -1 for none.
        """
        known = (token_ids >= 0) & (token_ids < self.tokens)
        ids = token_ids.where(known, 0)
        known &= self.weights[ids] != 0
        kinds = [ids.where(known, -1)]
        if len(self.pair_keys):
            keys = torch.full_like(ids, -1)
            keys[:, :-1] = (ids[:, :-1] * self.tokens + ids[:, 1:]).where(known[:, :-1] & known[:, 1:], -1)
            places = torch.searchsorted(self.pair_keys, keys).clamp(max=len(self.pair_keys) - 1)
            kinds.append((places + self.tokens).where(self.pair_keys[places] == keys, -1))
        if self.lead:
            # Padding and special tokens before a text move nothing: only tokens that count are numbered.
            is_first = known & (known.cumsum(dim=1) <= self.lead)
            kinds.append((ids + self.tokens + len(self.pair_keys)).where(is_first, -1))
        return torch.cat(kinds, dim=1)

    def forward(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Distinct features of each text and their values, both (texts, features); padding has the value 0."""
        features = self.features(token_ids).sort(dim=1).values
        is_first = torch.ones_like(features, dtype=torch.bool)
        is_first[:, 1:] = features[:, 1:] != features[:, :-1]
        place = is_first.cumsum(dim=1) - 1
        counts = torch.zeros_like(features, dtype=torch.float).scatter_add_(1, place, (features >= 0).float())
        distinct = torch.zeros_like(features).scatter_(1, place, features.clamp(min=0))
        values = (1 + counts.clamp(min=1).log()) * self.weights[distinct].float() * (counts > 0)
        return distinct, values / values.norm(dim=1, keepdim=True).clamp(min=1e-12)


class SparseTable(nn.Module):
    """
    Sparse rows over the features of texts, kept feature by feature: a text costs what its own features hold.

    Args:
        features: Number of features.
        rows: Number of rows.
        entries: Number of values that are not zero.
    """

    def __init__(self, features: int, rows: int, entries: int):
        super().__init__()
        self.num_rows = rows
        self.register_buffer("starts", torch.zeros(features + 1, dtype=torch.long))
        self.register_buffer("rows", torch.zeros(entries, dtype=torch.int))
        self.register_buffer("values", torch.zeros(entries))

    def entries(self, features: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each entry that these features meet: which of them, its row, and its value times theirs."""
        which, places = run_places(self.starts, features, values != 0)
        return which, self.rows[places].long(), self.values[places].float() * values[which]

    def forward(self, features: Tensor, values: Tensor) -> Tensor:
        """Products of texts, given as by [`TextCounter`], with all rows: (texts, rows)."""
        if values.device.type == "cpu" and torch.backends.mkl.is_available() and self.starts[-1] < 2**31:
            return self._of_matrices(features, values)
        return self._of_entries(features, values)

    def _of_matrices(self, features: Tensor, values: Tensor) -> Tensor:
        """As matrices in compressed rows, where there is a library for it: twenty times as fast."""
        met = values != 0
        ends = torch.cat([values.new_zeros(1), met.sum(dim=1).cumsum(0)]).int()
        size = (len(values), len(self.starts) - 1)
        with warnings.catch_warnings():
            # torch tells, once, that such matrices are new.
            warnings.simplefilter("ignore")
            texts = torch.sparse_csr_tensor(ends, features[met].int(), values[met], size=size)
            table = torch.sparse_csr_tensor(
                self.starts.int(), self.rows, self.values.to(values.dtype), size=(size[1], self.num_rows)
            )
        return torch.mm(texts, table, out=values.new_empty(len(values), self.num_rows))

    def _of_entries(self, features: Tensor, values: Tensor) -> Tensor:
        """Entry by entry, anywhere."""
        result = values.new_zeros(len(values), self.num_rows)
        met = ((self.starts[features + 1] - self.starts[features]) * (values != 0)).sum(dim=1)
        pieces = (met.cumsum(0) // _PIECE_ENTRIES).unique_consecutive(return_counts=True)[1].tolist()
        start = 0
        for length in pieces:
            texts = slice(start, start + length)
            which, rows, products = self.entries(features[texts].flatten(), values[texts].flatten())
            text = which // features.shape[1]
            result[texts].view(-1).index_add_(0, text * self.num_rows + rows, products)
            start += length
        return result


def run_places(starts: Tensor, runs: Tensor, wanted: Tensor | int = 1) -> tuple[Tensor, Tensor]:
    """Which of the given runs, (runs,), every entry of those `wanted` belongs to, and the place of the entry."""
    first = starts[runs]
    lengths = (starts[runs + 1] - first) * wanted
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    which = torch.repeat_interleave(lengths, output_size=total)
    return which, torch.arange(total, device=first.device) + (first - ends + lengths)[which]
