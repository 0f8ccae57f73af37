"""Each family's name and paper: what a model card says about it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FamilyPaper:
    """
    A family and the paper that it implements.

    Args:
        name: What the paper calls the system.
        summary: How it scores a label; continues a sentence that begins with "In <name>, ".
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

    def bibtex(self, key: str) -> str:
        """The paper as a BibTeX entry."""
        fields = {
            "title": f"{{{self.title}}}",
            "author": " and ".join(self.authors),
            "booktitle" if self.proceedings else "howpublished": self.venue,
            "year": self.year,
            "url": self.url,
        }
        kind = "inproceedings" if self.proceedings else "misc"
        known = [f"  {name} = {{{value}}}," for name, value in fields.items() if value is not None]
        return "\n".join([f"@{kind}{{{key},", *known, "}"])

    def reference(self) -> str:
        """The paper as a line of Markdown."""
        title = self.title if self.url is None else f"[{self.title}]({self.url})"
        venue = self.venue if self.year is None else f"{self.venue}, {self.year}"
        return f"{title} ({', '.join(self.authors)}; {venue})"


# By `model_type`; a family without a row has no card.
FAMILY_PAPERS = {
    "glocal_xml": FamilyPaper(
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
    "me_xml": FamilyPaper(
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
    "aplc_xlnet": FamilyPaper(
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
    "light_attention": FamilyPaper(
        name="LightAttention",
        summary="words go through a bidirectional LSTM, each label attends to its states, and fully connected layers "
        "turn what it read into its probability, as in AttentionXML (You et al. 2019, arXiv:1811.01727).",
        title="Multi-Label text classification (MTC)",
        authors=("Danlei Zhu", "Siyu Teng", "Junhao Huang"),
        venue="Manuscript, BNU-HKBU United International College",
        word_branches="attention",
    ),
}
