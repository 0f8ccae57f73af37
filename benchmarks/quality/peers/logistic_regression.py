"""
TF-IDF and one logistic regression for each label, of scikit-learn: what most people try first. Setting: `C`.
"""

from exchange import best_in_parts, label_matrix, run_peer, save_pickle, tf_idf
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
    return best_in_parts(classifier.predict_proba, vectorizer.transform(texts), task.top_k)


if __name__ == "__main__":
    run_peer(train, predict, save_pickle, ["scikit-learn", "numpy"])
