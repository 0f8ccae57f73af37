"""Which label has a name like that of a new one, as the model reads them."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from glocal_xml.experts.token_rows import sparse_rows, whole_text_ids
from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.encoder import encode_texts, evaluation_mode, position_limit

_TOKENS = 64
_NAMES_AT_A_TIME = 128


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
