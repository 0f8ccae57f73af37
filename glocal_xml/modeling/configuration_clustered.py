"""Fields of the families that can go through a label tree to the labels worth scoring."""

from dataclasses import field

from huggingface_hub.dataclasses import strict

from .configuration_base import XMTCConfig


@strict
class ClusteredConfig(XMTCConfig):
    """
    What families are configured by that score all labels, or, with a label tree, candidates alone. Shared fields are
    described in [`XMTCConfig`].

    Args:
        tree_levels (`list[int]`, *optional*, defaults to `[]`):
            Number of nodes of each level of the label tree from the top, the root left out (`LabelTree.level_sizes`);
            those of the last level are clusters of labels. With no levels every label is scored. The tree itself is
            kept with the weights: `model.set_label_tree`.
        beam (`int`, *optional*, defaults to 16):
            How many nodes of each level a prediction goes on from; more where `top_k` needs it.
        training_beam (`int`, *optional*, defaults to 16):
            How many nodes of each level a training step goes on from: those that lead to labels of the text, then the
            ones that now score highest, whose labels are the negatives.
    """

    tree_levels: list[int] = field(default_factory=list)
    beam: int = 16
    training_beam: int = 16

    def validate_tree(self):
        """Part of the checks that `@strict` runs at construction and before saving."""
        for name in ("beam", "training_beam"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        widening = [1, *self.tree_levels, self.num_labels]
        if self.tree_levels and any(below < above for above, below in zip(widening, widening[1:], strict=False)):
            raise ValueError(
                f"`tree_levels` must grow from the top and stay within the {self.num_labels} labels, got "
                f"{self.tree_levels}; give `LabelTree.level_sizes`."
            )


__all__ = ["ClusteredConfig"]
