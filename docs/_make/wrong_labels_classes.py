"""Which trainings with trim lose a whole class: the arm told the share of wrong labels, and the rule "held-out".

``python docs/_make/wrong_labels_classes.py`` repeats their runs at 40 % of wrong labels, counts the classes that the
model hardly ever finds among the test samples, and keeps the counts in a record of its own. The sentence about them is
written by ``wrong_labels.py --page``. ``--model lenet --data semeion`` runs a part.
"""

import argparse
import itertools
import json

import torch
from wrong_labels import train
from wrong_labels_design import CLASSES, DATA, MODELS, SEEDS, Run, read_classes

SHARE = 0.4


def main() -> None:
    """Run what is missing of the parts asked for, and add it to the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=DATA, action="append")
    parser.add_argument("--model", choices=MODELS, action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts = itertools.product(options.model or MODELS, options.data or DATA)
    for (model, data), kind, seed in itertools.product(parts, ("any", "nearest"), SEEDS):
        for arm in (f"{SHARE:g} 1", "held-out"):
            found = read_classes()
            if (model, data, kind, seed, arm) not in found:
                found[model, data, kind, seed, arm] = int(train(Run(data, model, SHARE, kind, seed, arm))["lost"])
                lines = [json.dumps([*run, lost]) for run, lost in found.items()]
                CLASSES.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
