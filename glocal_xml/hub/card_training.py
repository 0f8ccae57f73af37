"""What a model card says of the training: how long, on what, how the loss fell, which checkpoint was taken."""

from typing import Any

from .card_tables import percent


def training_section(training: dict[str, Any]) -> str:
    """A list of what is known; older results know less."""
    lines = []
    seconds = training.get("seconds", training.get("train_runtime"))
    if seconds is not None:
        epochs = training.get("epochs", training.get("epoch"))
        steps = f"{training['steps']:,} steps, " if "steps" in training else ""
        speed = training.get("texts_per_second", training.get("train_samples_per_second"))
        passes = f"{epochs:g} epoch{'s' if epochs != 1 else ''}"
        took = f"in {duration(seconds)}"
        if "resumed_at_step" in training:
            took = f"of which those after step {training['resumed_at_step']:,}, where the run was resumed, {took}"
        lines.append(f"{steps}{passes} {took}, {speed:.1f} texts a second, evaluations and checkpoints included")
    if training.get("loss_curve"):
        curve = ", ".join(f"{loss:.4g} ({step:,})" for step, loss in training["loss_curve"])
        lines.append(f"loss, in brackets the step: {curve}")
    if "best" in training:
        best = training["best"]
        lines.append(
            f"best checkpoint: step {best['step']:,}, with {best['metric']} {percent(best['value'])} on the "
            "validation texts"
        )
    if "hardware" in training:
        gpu = f", {training['peak_gpu_memory_gb']:g} GB on the GPU" if "peak_gpu_memory_gb" in training else ""
        lines.append(f"hardware: {training['hardware']}; memory at its peak: {training['peak_memory_gb']:g} GB{gpu}")
    return "\n".join(f"- {line}" for line in lines)


def experts_training_section(results: dict[str, Any]) -> str:
    """What is known of a run that fitted experts alone."""
    lines = [
        f"nothing is trained by gradient descent: choosing settings, fitting the experts and weighing them took "
        f"{duration(results['training_seconds'])}",
        f"memory at its peak: {results['peak_memory_gb']:g} GB",
    ]
    return "\n".join(f"- {line}" for line in lines)


def duration(seconds: float) -> str:
    """Seconds as people say it: `1 h 24 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
