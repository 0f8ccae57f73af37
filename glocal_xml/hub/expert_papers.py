"""What a model card says about each expert, and where it is from."""

from .family_papers import FamilyPaper

# By the name of the expert.
EXPERT_PAPERS = {
    "lexical": FamilyPaper(
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
    "memory": FamilyPaper(
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
