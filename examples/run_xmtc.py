"""
Trains a model of any family with `XMTCTrainer`, evaluates it and, with `--push_to_hub true`, shares it.

    python examples/run_xmtc.py --encoder minilm --train_file train.jsonl --test_file test.jsonl
    python examples/run_xmtc.py examples/recipes/debtags/glocal_xml.yaml --num_train_epochs 1
    accelerate launch examples/run_xmtc.py --encoder minilm --train_file train.jsonl
    torchrun --nproc_per_node 2 examples/run_xmtc.py --use_cpu true --ddp_backend gloo --encoder minilm --train_file …

A recipe is a file of flags. `--help` lists them all: model, data, and Transformers' own for training.
"""

import sys
import time

from glocal_xml.runs import (
    RunExperts,
    RunReport,
    blend_of_run,
    clear_run_folder,
    load_data,
    model_of_run,
    one_line_errors,
    prepare_training,
    resumable,
    run,
    start_logging,
    start_run,
)
from glocal_xml.training import XMTCTrainer, parse_arguments


def main(argv):
    # 1. Arguments: flags, or a recipe and flags. `checkpoint` is where an interrupted run resumes, if this is one.
    model_args, data_args, args = parse_arguments(argv)
    further = model_args.model or model_args.encoder == "none" or args.minutes or args.frozen_encoder
    if further or data_args.windows or data_args.streaming:
        # Trained or frozen models, models without an encoder, time budgets, windows and streams take further steps.
        return run(model_args, data_args, args)
    started = time.time()
    checkpoint = start_run(model_args, data_args, args)

    # 2. Data: the parts train, validation, test and predict as texts and as tokens; the labels; the tokenizer.
    data = load_data(model_args, data_args, args, checkpoint=checkpoint)
    has_validation = "validation" in data.texts

    # 3. Model: a family around a pretrained encoder, for very many labels with a label tree.
    model = model_of_run(model_args, args, data, resume=checkpoint is not None)
    prepare_training(args, model, data.tokenizer, data.label_space, has_validation=has_validation)

    # 4. Training of encoder and heads. Validation texts choose the best checkpoint.
    trainer = XMTCTrainer(
        model=model,
        args=args,
        label_space=data.label_space,
        processing_class=data.tokenizer,
        train_dataset=data.tokens["train"],
        eval_dataset=data.tokens.get("validation"),
    )
    if checkpoint is None and trainer.is_world_process_zero():
        clear_run_folder(args.output_dir)
    with resumable(args.output_dir):
        trained = trainer.train(resume_from_checkpoint=checkpoint)

    # 5. Experts beside the heads: a linear model over tokens, and memories of the training texts, by words and by
    #    embeddings. The blend weighs heads and experts on the validation texts: scores are calibrated probabilities.
    experts = RunExperts(model_args, data_args, args, data.texts, data.label_space, data.tokenizer)
    experts.fit(model)
    experts.fit_dense(model)
    watch = trainer.collapse_watch
    report = RunReport(model_args, data_args, args, data, model, collapse_watch=watch, started=started)
    report.add_training(trained.metrics | trainer.training_facts.facts)
    if args.blend and (model_args.experts or has_validation):
        blend = blend_of_run(model, data.texts, data.label_space, data.tokenizer, args.threshold_f)
        report.results["blend"] = blend

    # 6. Evaluation of heads, experts and blend. Once measured, validation texts are learned by the experts too.
    for part in ("validation", "test", "predict"):
        if part in data.tokens:
            output = trainer.predict(data.tokens[part], metric_key_prefix=part)
            report.add_part(part, output.predictions, output.label_ids, output.metrics)
        if part == "validation":
            experts.refit(model)
            trainer.save_model()
    report.add_probabilities()
    # Writes results.json, predictions.jsonl and the model card.
    report.save()

    # 7. The Hub: model and card, without texts.
    if args.push_to_hub:
        trainer.run_results = report.results
        trainer.push_to_hub()
    trainer.end()
    return report.results


if __name__ == "__main__":
    start_logging()
    with one_line_errors():
        main(sys.argv[1:])
