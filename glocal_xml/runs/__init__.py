"""One run from files to results, as one call (`fit`, `run`) and as the steps that example scripts put together."""

from .blend import blend_of_run
from .experts import RunExperts
from .fit import fit
from .model import model_of_run, prepare_training
from .report import RunReport
from .resume import LoopState, gather_rankings, one_line_errors, prepare_loop, resumable
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
