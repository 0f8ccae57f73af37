"""
LibMultiLabel's linear models on TF-IDF with its defaults: `method` is 1vsrest, a support vector machine for each
label, or tree, for many labels.
"""

import numpy as np
from exchange import best_of_scores, label_matrix, run_peer, save_pickle, tf_idf
from libmultilabel import linear

_METHODS = {"1vsrest": linear.train_1vsrest, "tree": linear.train_tree}


def train(task, texts, labels):
    vectorizer = tf_idf(texts)
    labels = label_matrix(labels, len(task.label_names())).astype(np.float64)
    # Without `-m` it takes all cores.
    options = f"-m {task.threads}"
    fit = _METHODS[task.settings["method"]]
    return vectorizer, fit(labels, vectorizer.transform(texts).astype(np.float64), options=options, verbose=False)


def predict(task, model, texts):
    vectorizer, classifier = model
    features = vectorizer.transform(texts).astype(np.float64)
    # All labels of 500 texts at a time.
    starts = range(0, len(texts), 500)
    parts = [best_of_scores(linear.predict_values(classifier, features[i : i + 500]), task.top_k) for i in starts]
    return tuple(np.concatenate([np.asarray(part) for part in column]) for column in zip(*parts, strict=True))


if __name__ == "__main__":
    run_peer(train, predict, save_pickle, ["libmultilabel", "liblinear-multicore", "scikit-learn", "numpy"])
