"""Families and experts, and the papers that they are from: what a model card says about them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """
    A family or an expert, and the paper that it implements.

    Args:
        name: What the paper calls the system.
        summary: How it scores a label; of a family the rest of a sentence that begins with "In <name>, ".
        title: Title of the paper.
        authors: Authors in the order of the paper.
        venue: Where it was published or submitted.
        year: Year of that, where it is known.
        url: Where to read it, where it is known.
        proceedings: Whether the venue is a conference with proceedings.
        word_branches: Regular expression of the branches whose label-word attention can be shown.
    """

    name: str
    summary: str
    title: str
    authors: tuple[str, ...]
    venue: str
    year: int | None = None
    url: str | None = None
    proceedings: bool = False
    word_branches: str | None = None


# By `model_type`; a family without a row has no card.
FAMILY_PAPERS = {
    "glocal_xml": Paper(
        name="GlocalXML",
        summary="a global branch compares the document token of the last layer with an embedding of each label, a "
        "local branch lets each label attend to the words of a lower layer; the final probability is their mean.",
        title="Exploiting Local and Global Features in Transformer-based Extreme Multi-label Text Classification",
        authors=("Ruohong Zhang", "Yau-Shian Wang", "Yiming Yang", "Tom Vu", "Likun Lei"),
        venue="arXiv:2204.00933",
        year=2022,
        url="https://arxiv.org/abs/2204.00933",
        word_branches="local",
    ),
    "me_xml": Paper(
        name="ME-XML",
        summary="several experts, each on a layer of its own, read the document token or let each label attend to the "
        "words; the final probability is the mean of the experts.",
        title="Extreme Multi-label Text Classification with Multi-layer Experts",
        authors=("Anonymous",),
        venue="Anonymous ACL submission, ACL Rolling Review, November 2021",
        year=2021,
        url="https://openreview.net/forum?id=IGAZ8wmBozW",
        word_branches=r"A-\d+",
    ),
    "aplc_xlnet": Paper(
        name="APLC-XLNet",
        summary="labels lie in clusters by their frequency: frequent ones are scored at once, the probability of a "
        "rarer one is that of its cluster times its own within the cluster.",
        title="Pretrained Generalized Autoregressive Model with Adaptive Probabilistic Label Clusters for Extreme "
        "Multi-label Text Classification",
        authors=("Hui Ye", "Zhiyu Chen", "Da-Han Wang", "Brian D. Davison"),
        venue="International Conference on Machine Learning (ICML)",
        year=2020,
        url="https://arxiv.org/abs/2007.02439",
        proceedings=True,
    ),
    "light_attention": Paper(
        name="LightAttention",
        summary="words go through a bidirectional LSTM, each label attends to its states, and fully connected layers "
        "turn what it read into its probability, as in AttentionXML (You et al. 2019, arXiv:1811.01727).",
        title="Multi-Label text classification (MTC)",
        authors=("Danlei Zhu", "Siyu Teng", "Junhao Huang"),
        venue="Manuscript, BNU-HKBU United International College",
        word_branches="attention",
    ),
}
# By the name of the expert.
EXPERT_PAPERS = {
    "lexical": Paper(
        name="the lexical expert",
        summary="a linear classifier per label over the tokens, and frequent pairs of tokens, of the whole text; many "
        "labels lie under a tree.",
        title="Parabel: Partitioned Label Trees for Extreme Classification with Application to Dynamic Search "
        "Advertising",
        authors=("Yashoteja Prabhu", "Anil Kag", "Shrutendra Harsola", "Rahul Agrawal", "Manik Varma"),
        venue="The Web Conference (WWW)",
        year=2018,
        url="https://doi.org/10.1145/3178876.3185998",
        proceedings=True,
    ),
    "memory": Paper(
        name="the memory expert",
        summary="the training texts most similar to a text, by the tokens that they share, vote for their labels; "
        "nothing is trained.",
        title="ML-KNN: A lazy learning approach to multi-label learning",
        authors=("Min-Ling Zhang", "Zhi-Hua Zhou"),
        venue="Pattern Recognition 40(7)",
        year=2007,
        url="https://doi.org/10.1016/j.patcog.2006.12.019",
    ),
}
