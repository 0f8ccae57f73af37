"""
LibMultiLabel's linear models on TF-IDF with its defaults: `method` is 1vsrest, a support vector machine for each
label, or tree, for many labels.
"""

import numpy as np
from exchange import best_in_parts, label_matrix, run_peer, save_pickle, tf_idf
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
    return best_in_parts(classifier.predict_values, features, task.top_k)


if __name__ == "__main__":
    run_peer(train, predict, save_pickle, ["libmultilabel", "liblinear-multicore", "scikit-learn", "numpy"])
