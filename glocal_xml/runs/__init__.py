"""One run from files to results, as one call (`fit`, `run`) and as the steps that example scripts put together."""

from .accelerate_loop import gather_rankings, prepare_loop
from .blend import blend_of_run
from .experts import RunExperts
from .fit import fit
from .model import prepare_training
from .model_of_run import model_of_run
from .report import RunReport
from .resume import LoopState, one_line_errors, resumable
from .run import run, start_logging, start_run
from .run_data import RunData, load_data
from .run_folder import clear_run_folder

__all__ = [
    "LoopState",
    "RunData",
    "RunExperts",
    "RunReport",
    "blend_of_run",
    "clear_run_folder",
    "fit",
    "gather_rankings",
    "load_data",
    "model_of_run",
    "one_line_errors",
    "prepare_loop",
    "prepare_training",
    "resumable",
    "run",
    "start_logging",
    "start_run",
]
