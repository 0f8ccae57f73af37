"""
XR-Transformer of PECOS around MiniLM: the encoder is trained level by level down a tree of labels, then XR-Linear on
its embeddings and TF-IDF.

It knows no time budget, only steps of each level. So a step and the encoding of a batch are timed first. What is left
of the budget once all texts are encoded for each level, and a tenth for the linear models, is spent on steps.
"""

import time

import torch
from exchange import best_of_sparse, label_matrix, minilm_path, run_peer, save_pickle, tf_idf
from pecos.utils.cluster_util import ClusterChain
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xtransformer.model import XTransformer
from pecos.xmc.xtransformer.module import MLProblemWithText
from transformers import AutoModel

_LENGTH = 128


def train(task, texts, labels):
    started = time.perf_counter()
    torch.manual_seed(task.seed)
    vectorizer = tf_idf(texts)
    features, labels = vectorizer.transform(texts).sorted_indices(), label_matrix(labels, len(task.label_names()))
    clusters = ClusterChain(Indexer.gen(LabelEmbeddingFactory.pifa(labels, features), seed=task.seed))
    params = XTransformer.TrainParams.from_dict({}, recursive=True)
    matcher = params.matcher_params_chain
    # Without a worker it divides by 0: its sparse products take as many threads as there are workers.
    matcher.model_shortcut, matcher.use_gpu, matcher.batch_gen_workers = minilm_path(), False, 1
    for name, value in task.settings.items():
        setattr(matcher, name, value)
    step, encoding = _seconds_per_batch(matcher.batch_size)
    left = 0.9 * (60 * task.minutes - (time.perf_counter() - started))
    left -= len(clusters) * encoding * len(texts) / matcher.batch_size
    matcher.max_steps = int(left / step / len(clusters))
    print(f"{len(clusters)} levels, {step:.2f} s a step, {encoding:.2f} s to encode a batch", matcher.max_steps)
    if matcher.max_steps < 1:
        raise SystemExit(f"{task.minutes} minutes are too few to encode {len(texts)} texts {len(clusters)} times")
    # Checkpoints only at the end of a level.
    matcher.save_steps = 10**9
    predicted = XTransformer.PredParams.from_dict({}, recursive=True)
    predicted.matcher_params_chain.truncate_length = _LENGTH
    problem = MLProblemWithText(texts, labels, X_feat=features)
    return vectorizer, XTransformer.train(
        problem, clusters, train_params=params, pred_params=predicted, threads=task.threads
    )


def predict(task, model, texts):
    vectorizer, transformer = model
    found = transformer.predict(
        texts,
        vectorizer.transform(texts).sorted_indices(),
        only_topk=task.top_k,
        batch_size=32,
        batch_gen_workers=1,
        use_gpu=False,
        threads=task.threads,
    )
    return best_of_sparse(found, task.top_k)


def save(model, folder):
    vectorizer, transformer = model
    save_pickle(vectorizer, folder)
    transformer.save(str(folder / "transformer"))


def _seconds_per_batch(size):
    """Seconds of a training step of the encoder, and of encoding a batch; the second try of each counts."""
    encoder, tokens = AutoModel.from_pretrained(minilm_path()), torch.randint(1000, 20000, (size, _LENGTH))
    for _ in range(2):
        started = time.perf_counter()
        with torch.inference_mode():
            encoder(tokens)
        encoded = time.perf_counter()
        encoder(tokens).last_hidden_state.sum().backward()
        stepped = time.perf_counter()
    return stepped - encoded, encoded - started


if __name__ == "__main__":
    run_peer(train, predict, save, ["libpecos", "transformers", "torch", "scikit-learn", "numpy"])
