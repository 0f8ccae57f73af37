"""
What `run_xmtc.py` does, in a training loop of its own with Accelerate: to read, and to change.

    python examples/run_xmtc_no_trainer.py examples/recipes/debtags/demo.yaml
    accelerate launch examples/run_xmtc_no_trainer.py --encoder minilm --train_file train.jsonl
    torchrun --nproc_per_node 2 examples/run_xmtc_no_trainer.py --label_shards 2 --encoder minilm --train_file …

The first two lines split the texts among processes; the last splits the labels, for tables too large for one process.
Reads the same recipes and flags; those of Trainer that this loop has no line for are refused or, where they change no
result, ignored. After every epoch it evaluates, keeps the best model and a state to resume from
(`--resume_from_checkpoint last`).
"""

import logging
import math
import os
import shutil
import sys
from pathlib import Path
from pickle import UnpicklingError

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModel, get_scheduler
from transformers.trainer_pt_utils import get_parameter_names

from glocal_xml.data import XMTCCollator, tokenize
from glocal_xml.interruption import terminated_like_ctrl_c
from glocal_xml.json_text import json_text, read_json_object
from glocal_xml.plain_errors import mendable, one_line
from glocal_xml.training import branch_metrics, card_of_run, clip_gradients, parameter_groups, parse_arguments
from glocal_xml.training.callbacks import evaluation_line
from glocal_xml.training.collapse import CollapseWatch
from glocal_xml.training.experts_of_run import RunExperts, blend_of_run
from glocal_xml.training.model_of_run import build_model, check_length, check_processes, default_rates, late_loss
from glocal_xml.training.prepare import check_arguments, load_texts, load_tokenizer, settle_metrics
from glocal_xml.training.report import (
    FINAL,
    data_facts,
    environment,
    final_name,
    hardware,
    hub_ids,
    peak_memory_gb,
    rankings,
    result_rows,
    results_table,
    run_settings,
)
from glocal_xml.training.rowwise_adamw import for_sparse_tables
from glocal_xml.training.run_folder import (
    check_run_folder,
    clear_run_folder,
    prediction_lines,
    write_card,
    write_predictions,
    write_results,
)
from glocal_xml.training.sharding_on_cpu import check_together
from glocal_xml.training.split_labels import (
    check_label_shards,
    load_split_model,
    load_split_state,
    save_split_state,
    start_split_model,
)
from glocal_xml.training.token_columns import start_tokens, with_whole_texts
from glocal_xml.training.tree_of_run import tree_of_run
from glocal_xml.training.whole_checkpoints import check_loss, why_not_whole, write_manifest

logger = logging.getLogger("glocal_xml")


def evaluate(accelerator, model, loader, label_space, args, top_k=None):
    """Rankings and labels of all texts of a part, gathered from all processes, and their metrics."""
    model.eval()
    gathered = []
    for batch in tqdm(loader, desc="evaluating", disable=args.disable_tqdm, leave=False):
        labels = batch.pop("labels")
        with torch.no_grad():
            output = model(**batch, top_k=top_k or max(args.metrics_at), output_logits=False)
        ranked = rankings(accelerator.unwrap_model(model), output)
        # Where labels are split, every process has read all texts.
        if args.label_shards == 1:
            labels = accelerator.pad_across_processes(labels, dim=1, pad_index=-100)
            ranked, labels = accelerator.gather_for_metrics((ranked, labels))
        gathered.append((ranked, labels))
    width = max(labels.shape[1] for _, labels in gathered)
    padded = [torch.nn.functional.pad(labels, (0, width - labels.shape[1]), value=-100) for _, labels in gathered]
    ranked = {name: torch.cat([batch[name] for batch, _ in gathered]).cpu().numpy() for name in gathered[0][0]}
    true_labels = torch.cat(padded).cpu().numpy()
    return ranked, true_labels, branch_metrics(ranked, true_labels, label_space, args)


def check_flags(model_args, data_args, args):
    """Refuses what would silently be something else here than in `run_xmtc.py`."""
    asked = {
        "--model": model_args.model is not None,
        "--encoder none": model_args.encoder == "none",
        "--minutes": args.minutes is not None,
        "--predict_file": data_args.predict_file is not None,
        "--streaming": data_args.streaming,
        "--windows": data_args.windows is not None,
        "--max_steps": args.max_steps > 0,
        "--fp16 or --bf16 (use accelerate's --mixed_precision)": args.fp16 or args.bf16,
        "--early_stopping_patience": args.early_stopping_patience is not None,
        "--optim": args.optim != "adamw_torch_fused",
    }
    refused = [flag for flag, given in asked.items() if given]
    if refused:
        raise ValueError(f"this loop does not know {', '.join(refused)}; run_xmtc.py does")
    check_label_shards(args.label_shards)
    check_arguments(model_args, data_args, training=data_args.train_file or data_args.dataset_name)


def save_state(accelerator, folder, progress, schedule, split_parts):
    """Writes a state to resume from; at every moment a whole one is there, as `state` or `state.old`."""
    if accelerator.is_main_process:
        shutil.rmtree(f"{folder}.new", ignore_errors=True)
    accelerator.wait_for_everyone()
    if split_parts:
        save_split_state(f"{folder}.new", *split_parts)
    else:
        accelerator.save_state(f"{folder}.new")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        # The schedule as JSON: Accelerate would pickle it, and a pickle may run anything when it is read.
        progress = progress | {"schedule": schedule.state_dict()}
        Path(f"{folder}.new", "progress.json").write_text(json_text(progress), encoding="utf-8")
        write_manifest(f"{folder}.new")
        put_in_place(folder)
    accelerator.wait_for_everyone()


def put_in_place(folder):
    """Makes the folder of `folder.new`; the one before is deleted when that is done."""
    if os.path.exists(folder):
        shutil.rmtree(f"{folder}.old", ignore_errors=True)
        os.rename(folder, f"{folder}.old")
    os.rename(f"{folder}.new", folder)
    shutil.rmtree(f"{folder}.old", ignore_errors=True)


def last_state(folder):
    """The newest whole state."""
    for candidate in filter(os.path.exists, (folder, f"{folder}.old")):
        if (reason := why_not_whole(candidate, needed=("progress.json",))) is None:
            return candidate
        logger.warning("%s is skipped: %s.", candidate, reason)
    raise ValueError(f"there is no whole state to resume from in {folder}")


def main(argv):
    model_args, data_args, args = parse_arguments(argv)
    check_flags(model_args, data_args, args)
    state_folder, best_folder = (os.path.join(args.output_dir, name) for name in ("state", "state.best"))
    state = last_state(state_folder) if args.resume_from_checkpoint else None
    if state is None:
        check_run_folder(args.output_dir, resume=None, overwrite=args.overwrite_output)

    # 1. Accelerate, with a sampler that is the same in every process and after a resume.
    accelerator = Accelerator(
        cpu=args.use_cpu,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
        # The upper layers have no gradient where only the local branch is trained.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True, broadcast_buffers=False)],
    )
    check_together(accelerator.num_processes)
    set_seed(args.seed)
    if not accelerator.is_main_process:
        logger.setLevel(logging.WARNING)
    logger.info("%d process(es) on %s, seed %d", accelerator.num_processes, accelerator.device.type, args.seed)

    # 2. Texts, tokens, model.
    with accelerator.main_process_first():
        texts, label_space = load_texts(data_args, None, args.seed, None, args.blend)
        tokenizer = load_tokenizer(model_args, data_args.max_length, texts)
        tokens = {name: tokenize(part, tokenizer, tokenizer.model_max_length) for name, part in texts.items()}
    logger.info("labels: %s", label_space.describe())
    split = args.label_shards > 1
    if split:
        if model_args.experts or args.blend:
            logger.warning("No experts and no blend, which are whole in each process: the labels are split.")
            model_args.experts, args.blend = [], False
        model = start_split_model(model_args, label_space, tokenizer, args.label_shards, f"{state_folder}.start")
    else:
        tree = tree_of_run(
            model_args,
            texts,
            label_space,
            args.output_dir,
            resume=state is not None,
            main_process_first=accelerator.main_process_first,
            is_main_process=accelerator.is_main_process,
            show_progress=not args.disable_tqdm,
        )
        model = build_model(model_args, label_space, tokenizer, tree)
    default_rates(args, model)
    check_length(model, tokenizer.model_max_length)
    check_processes(model.config, accelerator.num_processes)
    if warning := late_loss(model.config, args):
        logger.warning(warning)
    args.load_best_model_at_end = "validation" in tokens
    settle_metrics(args, model, label_space)
    final = final_name(model)
    collapse_watch = CollapseWatch(label_space, args, model)
    collator = XMTCCollator(tokenizer)
    train_loader = DataLoader(tokens["train"], args.train_batch_size, shuffle=True, collate_fn=collator)
    others = {
        name: DataLoader(tokens[name], args.eval_batch_size, collate_fn=collator) for name in texts.keys() - {"train"}
    }

    # 3. A learning rate per module, and the slanted triangular schedule.
    decayed = set(get_parameter_names(model, [torch.nn.LayerNorm], ["bias", "norm"]))
    groups = parameter_groups(
        model,
        learning_rate=args.learning_rate,
        module_learning_rates=args.module_learning_rates,
        weight_decay=args.weight_decay,
        decayed=decayed,
    )
    optimizer = for_sparse_tables(torch.optim.AdamW, model)(groups, eps=args.adam_epsilon)
    if split:
        # The model passes gradients between processes itself, and all of them read the same texts.
        model, optimizer = accelerator.prepare_model(model, evaluation_mode=True), accelerator.prepare(optimizer)
        alone = {"num_processes": 1, "process_index": 0, "put_on_device": True, "use_seedable_sampler": True}
        train_loader = prepare_data_loader(train_loader, accelerator.device, **alone)
        others = {name: prepare_data_loader(loader, accelerator.device, **alone) for name, loader in others.items()}
    else:
        model, optimizer, train_loader = accelerator.prepare(model, optimizer, train_loader)
        others = {name: accelerator.prepare(loader) for name, loader in others.items()}
    steps_per_epoch = math.ceil(len(train_loader) / args.gradient_accumulation_steps)
    epochs = math.ceil(args.num_train_epochs)
    total = steps_per_epoch * epochs
    warmup = args.warmup_steps if args.warmup_steps >= 1 else math.ceil(args.warmup_steps * total)
    # Not prepared: it would step once per process, and here it steps once per optimiser step.
    schedule = get_scheduler(args.lr_scheduler_type, optimizer, int(warmup), total)
    split_parts = (accelerator.unwrap_model(model), optimizer.optimizer) if split else None

    # 4. Resume, or start anew.
    progress = {"epoch": 0, "best": None}
    if state is not None:
        if split:
            load_split_state(state, *split_parts)
        else:
            try:
                accelerator.load_state(state)
            except (RuntimeError, UnpicklingError) as error:
                # Anything but tensors and numbers is refused, not run.
                raise ValueError(f"{state} cannot be resumed from: {error}") from error
        progress = read_json_object(Path(state, "progress.json"))
        schedule.load_state_dict(progress.pop("schedule"))
    elif accelerator.is_main_process:
        clear_run_folder(args.output_dir)

    # 5. Train.
    bar = tqdm(total=total, initial=progress["epoch"] * steps_per_epoch, disable=args.disable_tqdm)
    for epoch in range(progress["epoch"], epochs):
        if split:
            # Dropout must be the same in all processes, or what they share drifts apart; also after a resume.
            set_seed(args.seed + epoch)
        model.train()
        accelerator.unwrap_model(model).start_epoch(epoch)
        train_loader.set_epoch(epoch)
        total_loss = 0.0
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                check_loss(loss, bar.n + 1, args.output_dir)
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
        line = f"epoch {epoch + 1}: training loss {total_loss / len(train_loader):.5f}"
        score = None
        if "validation" in others:
            rankings, true_labels, metrics = evaluate(accelerator, model, others["validation"], label_space, args)
            collapse_watch.look(rankings[FINAL], true_labels, epoch + 1)
            line += f" | validation {evaluation_line(metrics, args.metrics_at, final, prefix='')}"
            score = metrics[args.metric_for_best_model]
        logger.info(line)
        # Without validation texts the last model is the one to keep.
        if score is None or progress["best"] is None or score > progress["best"]:
            progress["best"] = score
            # Beside the state: with the model in `output_dir`, which experts join, training could not be resumed.
            accelerator.unwrap_model(model).save_pretrained(
                f"{best_folder}.new",
                is_main_process=accelerator.is_main_process,
                # Where FSDP has split the weights, all processes bring theirs together; split labels do it themselves.
                state_dict=None if split else accelerator.get_state_dict(model),
            )
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                tokenizer.save_pretrained(f"{best_folder}.new")
                label_space.save(f"{best_folder}.new")
                put_in_place(best_folder)
        progress["epoch"] = epoch + 1
        save_state(accelerator, state_folder, progress, schedule, split_parts)

    # 6. The best model with the experts and the blend of all, on the test texts.
    data_args.max_length = tokenizer.model_max_length
    results = {
        "settings": run_settings(model_args, data_args, args),
        "hub_ids": hub_ids(model_args, data_args),
        "data": data_facts(texts, label_space),
        "environment": environment(args),
        "collapsed": None,
        "training": {"hardware": hardware(accelerator.device), "peak_memory_gb": peak_memory_gb()},
    }
    accelerator.wait_for_everyone()
    if split:
        best = load_split_model(best_folder, args.label_shards)
    else:
        best = AutoModel.from_pretrained(best_folder).to(accelerator.device)
    if model_args.experts:
        # They count whole texts, of which the encoder reads the start.
        texts = {name: with_whole_texts(part, tokenizer) for name, part in texts.items()}
    experts = RunExperts(model_args, data_args, args, texts, label_space, tokenizer)
    if model_args.experts:
        experts.fit(best)
        whole = {name: start_tokens(texts[name], tokenizer, tokenizer.model_max_length) for name in others}
        others = {
            name: accelerator.prepare(DataLoader(part, args.eval_batch_size, collate_fn=collator))
            for name, part in whole.items()
        }
    if args.blend and (model_args.experts or "validation" in texts):
        results["blend"] = blend_of_run(best, texts, label_space, tokenizer, args.threshold_f)
    final = final_name(best)
    for name in ("validation", "test"):
        if name == "test" and model_args.experts and args.refit_experts:
            experts.refit(best)
        if name in others:
            rankings, true_labels, metrics = evaluate(accelerator, best, others[name], label_space, args)
            results[name] = result_rows(metrics, "", final)
            if results["collapsed"] is None:
                results["collapsed"] = collapse_watch.conclude(rankings[FINAL], true_labels)
            logger.info("%s\n%s", name, results_table(results[name], args))
            if name == "test" and accelerator.is_main_process:
                lines = prediction_lines(
                    name, texts[name]["text"], rankings[FINAL], rankings["scores"], texts[name]["labels"], label_space
                )
                write_predictions(args.output_dir, lines)
    if accelerator.is_main_process:
        shutil.copytree(best_folder, args.output_dir, dirs_exist_ok=True)
        if not split:
            best.save_pretrained(args.output_dir)
        # A killed process may have left them.
        for name in ("state.new", "state.old", "state.best.new", "state.best.old", "state.start"):
            shutil.rmtree(os.path.join(args.output_dir, name), ignore_errors=True)
        logger.info("results: %s", write_results(args.output_dir, results))
        write_card(args.output_dir, card_of_run(args.output_dir)[1])
    accelerator.end_training()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO, stream=sys.stdout)
    try:
        with terminated_like_ctrl_c():
            main(sys.argv[1:])
    except Exception as error:
        if (reason := mendable(error)) is None:
            raise
        print(f"error: {one_line(reason)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("Interrupted. The same command with `--resume_from_checkpoint last` continues after the last epoch.")
        sys.exit(130)
