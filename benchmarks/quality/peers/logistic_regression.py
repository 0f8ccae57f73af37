"""
TF-IDF and one logistic regression for each label, of scikit-learn: what most people try first. Setting: `C`.
"""

import numpy as np
from exchange import best_of_scores, label_matrix, run_peer, save_pickle, tf_idf
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier


def train(task, texts, labels):
    vectorizer = tf_idf(texts)
    classifier = OneVsRestClassifier(
        LogisticRegression(solver="liblinear", random_state=task.seed, **task.settings), n_jobs=task.threads
    )
    return vectorizer, classifier.fit(vectorizer.transform(texts), label_matrix(labels, len(task.label_names())))


def predict(task, model, texts):
    vectorizer, classifier = model
    features = vectorizer.transform(texts)
    # All labels of a thousand texts at a time.
    starts = range(0, len(texts), 1000)
    parts = [best_of_scores(classifier.predict_proba(features[i : i + 1000]), task.top_k) for i in starts]
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


if __name__ == "__main__":
    run_peer(train, predict, save_pickle, ["scikit-learn", "numpy"])
