"""
What `run_xmtc.py` does, in a training loop with Accelerate: to read, and to change.

    python examples/run_xmtc_no_trainer.py --encoder minilm --train_file train.jsonl --output_dir outputs/tags
    accelerate launch examples/run_xmtc_no_trainer.py --encoder minilm --train_file train.jsonl
    torchrun --nproc_per_node 2 examples/run_xmtc_no_trainer.py --label_shards 2 --encoder minilm --train_file …

Several processes split the texts among them or, by `--label_shards`, the labels, for tables too large for one process.
The same flags and recipes. After every epoch it evaluates, keeps the best model, and saves a state from which
`--resume_from_checkpoint last` continues to the same weights, bit by bit.
"""

import logging
import math
import sys
import time

from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import get_scheduler

from glocal_xml import runs
from glocal_xml.data import XMTCCollator
from glocal_xml.training import (
    CollapseWatch,
    branch_metrics,
    check_loss,
    clip_gradients,
    create_optimizer,
    evaluation_line,
    final_name,
    parse_arguments,
)

logger = logging.getLogger("glocal_xml")


def refuse_other_flags(model_args, data_args, args):
    """Refuses flags that this loop has no line for."""
    asked = {
        "--model": model_args.model is not None,
        "--encoder none": model_args.encoder == "none",
        "--minutes": args.minutes is not None,
        "--frozen_encoder": bool(args.frozen_encoder),
        "--predict_file": data_args.predict_file is not None,
        "--streaming": data_args.streaming,
        "--windows": data_args.windows is not None,
        "--max_steps": args.max_steps > 0,
        "--fp16 or --bf16 (use accelerate's --mixed_precision)": args.fp16 or args.bf16,
        "--early_stopping_patience": args.early_stopping_patience is not None,
        "--greater_is_better false": not args.greater_is_better,
        "--push_to_hub": args.push_to_hub,
    }
    refused = [flag for flag, given in asked.items() if given]
    if refused:
        raise ValueError(f"this loop does not know {', '.join(refused)}; run_xmtc.py does")


def main(argv):
    # 1. Arguments, and processes that read the texts in the same order, also after a resume.
    started = time.time()
    model_args, data_args, args = parse_arguments(argv)
    refuse_other_flags(model_args, data_args, args)
    accelerator = Accelerator(
        cpu=args.use_cpu,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
        # The upper layers have no gradient where only the local branch is trained.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True, broadcast_buffers=False)],
    )
    checkpoint = runs.start_run(model_args, data_args, args, with_trainer=False)

    # 2. Data and model, whole in every process or with its part of the labels.
    data = runs.load_data(model_args, data_args, args, checkpoint=checkpoint)
    label_space, has_validation = data.label_space, "validation" in data.texts
    model = runs.model_of_run(model_args, args, data, resume=checkpoint is not None)
    runs.prepare_training(args, model, data.tokenizer, label_space, has_validation=has_validation)
    collapse_watch = CollapseWatch(label_space, args, model)

    # 3. Batches, a learning rate per module, its schedule, and the state to resume from.
    sizes = {name: args.train_batch_size if name == "train" else args.eval_batch_size for name in data.tokens}
    loaders = {
        name: DataLoader(part, sizes[name], shuffle=name == "train", collate_fn=XMTCCollator(data.tokenizer))
        for name, part in data.tokens.items()
    }
    model, optimizer, loaders = runs.prepare_loop(accelerator, model, create_optimizer(model, args), loaders)
    epochs = math.ceil(args.num_train_epochs)
    total = epochs * math.ceil(len(loaders["train"]) / args.gradient_accumulation_steps)
    # Not prepared: it would step once per process, and here it steps once per optimiser step.
    schedule = get_scheduler(args.lr_scheduler_type, optimizer, args.get_warmup_steps(total), total)
    prepared = (model, optimizer, schedule, data.tokenizer, label_space)
    state = runs.LoopState(accelerator, args.output_dir, *prepared)
    progress = {"epoch": 0, "best": None}
    if checkpoint is not None:
        progress = state.load(checkpoint)
    elif accelerator.is_main_process:
        runs.clear_run_folder(args.output_dir)

    # 4. Training.
    shown = {"top_k": max(args.metrics_at), "show_progress": not args.disable_tqdm}
    bar = tqdm(total=total, initial=schedule.last_epoch, disable=args.disable_tqdm)
    with runs.resumable(args.output_dir):
        for epoch in range(progress["epoch"], epochs):
            if args.label_shards > 1:
                # Dropout must be the same in all processes, or what they share drifts apart; also after a resume.
                set_seed(args.seed + epoch)
            model.train()
            accelerator.unwrap_model(model).start_epoch(epoch)
            loaders["train"].set_epoch(epoch)
            total_loss = 0.0
            for batch in loaders["train"]:
                with accelerator.accumulate(model):
                    loss = model(**batch).loss
                    check_loss(loss, schedule.last_epoch + 1, args.output_dir)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.unscale_gradients()
                        clip_gradients(model.parameters(), args.max_grad_norm or math.inf)
                    optimizer.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    schedule.step()
                    bar.update()
                total_loss += loss.item()
            logger.info("epoch %d: training loss %.5f", epoch + 1, total_loss / len(loaders["train"]))

            # After every epoch: evaluation, the best model, and the state. Without validation texts the last is best.
            score = None
            if has_validation:
                rankings, labels = runs.gather_rankings(accelerator, model, loaders["validation"], **shown)
                metrics = branch_metrics(rankings, labels, label_space, args)
                score = metrics[args.metric_for_best_model]
                final = final_name(accelerator.unwrap_model(model))
                logger.info("validation %s", evaluation_line(metrics, args.metrics_at, final, prefix=""))
                collapse_watch.look(rankings["final"], labels, epoch + 1)
            if score is None or progress["best"] is None or score > progress["best"]:
                progress["best"] = score
                state.save_best()
            progress["epoch"] = epoch + 1
            state.save(progress)

    # 5. The best model with its experts: a linear model over tokens, and memories of training texts, by words and by
    #    embeddings. The blend weighs heads and experts on the validation texts: scores are calibrated probabilities.
    best = state.load_best()
    experts = runs.RunExperts(model_args, data_args, args, data.texts, label_space, data.tokenizer)
    experts.fit(best)
    experts.fit_dense(best)
    watched = {"collapse_watch": collapse_watch, "started": started}
    report = runs.RunReport(model_args, data_args, args, data, best, **watched)
    report.add_training()
    if args.blend and (model_args.experts or has_validation):
        blend = runs.blend_of_run(best, data.texts, label_space, data.tokenizer, args.threshold_f)
        report.results["blend"] = blend

    # 6. Evaluation of heads, experts and blend. Once measured, validation texts are learned by the experts too.
    for part in ("validation", "test"):
        if part in loaders:
            report.add_part(part, *runs.gather_rankings(accelerator, best, loaders[part], **shown))
        if part == "validation":
            experts.refit(best)
    report.add_probabilities()
    state.finish(best)
    # Writes results.json, predictions.jsonl and the model card.
    report.save()
    accelerator.end_training()


if __name__ == "__main__":
    runs.start_logging()
    with runs.one_line_errors():
        main(sys.argv[1:])
