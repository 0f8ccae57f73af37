"""
Trains, evaluates and predicts with any family of this package.

    python examples/run_xmtc.py examples/recipes/debtags/glocal_xml.yaml
    accelerate launch examples/run_xmtc.py --encoder minilm --train_file train.jsonl --test_file test.jsonl

The steps are in `glocal_xml/training/run.py`; `run_xmtc_no_trainer.py` spells them out in one loop.
"""

import sys

from glocal_xml.training import main

if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"error: {error}")
