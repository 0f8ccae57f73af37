"""
XR-Linear of PECOS with its defaults: a tree of labels with linear classifiers on TF-IDF.
"""

from exchange import best_of_sparse, label_matrix, run_peer, save_pickle, tf_idf
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel


def train(task, texts, labels):
    vectorizer = tf_idf(texts)
    features, labels = vectorizer.transform(texts).sorted_indices(), label_matrix(labels, len(task.label_names()))
    embeddings = LabelEmbeddingFactory.create(labels, features, method="pifa")
    clusters = Indexer.gen(embeddings, indexer_type="hierarchicalkmeans", seed=task.seed, threads=task.threads)
    return vectorizer, XLinearModel.train(features, labels, C=clusters, threads=task.threads, **task.settings)


def predict(task, model, texts):
    vectorizer, ranker = model
    features = vectorizer.transform(texts).sorted_indices()
    return best_of_sparse(ranker.predict(features, only_topk=task.top_k, threads=task.threads), task.top_k)


def save(model, folder):
    vectorizer, ranker = model
    save_pickle(vectorizer, folder)
    ranker.save(str(folder / "ranker"))


if __name__ == "__main__":
    run_peer(train, predict, save, ["libpecos", "scikit-learn", "numpy"])
