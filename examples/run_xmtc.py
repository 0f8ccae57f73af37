"""
Trains, evaluates and predicts with any family of this package.

    python examples/run_xmtc.py examples/recipes/debtags/glocal_xml.yaml
    accelerate launch examples/run_xmtc.py --encoder minilm --train_file train.jsonl --test_file test.jsonl

It is `glocal-xml train`, for launchers that want a script. The steps are in `glocal_xml/runs/run.py`;
`run_xmtc_no_trainer.py` spells them out in one loop.
"""

import sys

from glocal_xml.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
