"""The model that a run trains: whole in every process, or with its labels split over them; with a label tree."""

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.training.arguments import ModelArguments, XMTCTrainingArguments

from .model import build_model
from .run_data import RunData
from .split_labels import start_split_model
from .tree import tree_of_run


def model_of_run(
    model_args: ModelArguments, args: XMTCTrainingArguments, data: RunData, *, resume: bool = False
) -> XMTCPreTrainedModel:
    """
    The model that the arguments ask for. A label tree is made of the texts and kept in the folder of the run: a run
    that resumes from a checkpoint has it already.
    """
    if args.label_shards > 1:
        # Next to the states to resume from, and deleted with them.
        folder = f"{args.output_dir}/state.start"
        return start_split_model(model_args, data.label_space, data.tokenizer, args.label_shards, folder)
    tree = tree_of_run(model_args, args, data.texts, data.label_space, resume=resume)
    return build_model(model_args, data.label_space, data.tokenizer, tree)
