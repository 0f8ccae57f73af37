"""What becomes of the labels of a model: which stay, under which names, and which come new."""

from collections.abc import Mapping, Sequence

from glocal_xml.data import LabelSpace


def plan_changes(
    label_space: LabelSpace, add: Sequence[str], remove: Sequence[str], rename: Mapping[str, str]
) -> tuple[list[int], LabelSpace]:
    """
    Checks what is asked for against the labels there are. Returns the old ids of those that stay, in their order, and
    the label space after the change, in which new labels come behind them with a count of 0.
    """
    known, removed = set(label_space.names), set(remove)
    for what, names in {"remove": remove, "rename": rename}.items():
        missing = [name for name in names if name not in known]
        if missing:
            raise ValueError(
                f"`{what}` names {len(missing)} labels that the model does not have, such as {missing[0]!r}; "
                "its labels are in labels.txt."
            )
    both = sorted(removed & {*add, *rename})
    if both:
        raise ValueError(f"{both[0]!r} is to be removed and to be added or renamed too: leave one of them out.")
    kept = [i for i, name in enumerate(label_space.names) if name not in removed]
    names = [rename.get(label_space.names[i], label_space.names[i]) for i in kept]
    taken = sorted(set(add) & set(names))
    if taken:
        raise ValueError(f"`add` holds {taken[0]!r}, which is a label of the model already: leave it out.")
    if not (add or remove or rename):
        raise ValueError("No change of labels is asked for: give labels to add, to remove or to rename.")
    counts = [*(label_space.counts[i] for i in kept), *[0] * len(add)]
    return kept, LabelSpace([*names, *add], counts, label_space.num_texts)
