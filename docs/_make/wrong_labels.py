"""Can training itself tell which share of the labels is wrong? Rules that set trim and q, against fixed ones.

``python docs/_make/wrong_labels.py --data digits --model logistic`` runs one part of the design and adds it to the
record; runs that have a record are not run again. It needs MNIST and Fashion-MNIST (`osgd data fetch`), and
about 25 minutes of one core for the linear model in all. ``--page`` only writes the tables.

A share of the training labels is flipped, to any other class or to the one whose mean image is nearest; test labels are
right. The fixed arms keep a share q after dropping a share `trim`, which grows over ten epochs. The best of them is
chosen *by its test error*, which nobody can do in practice: it is what a rule could reach at most. The rules are in
`wrong_labels_rules.py`; the choices of "watched" were fixed on other samples and seeds of the same data sets, those of
"held-out" on the seeds 0, 1 and 2, whose fixed arms are in the record too (``--development``); the linear fixed arms of
the seeds 10, 11 and 12 were known by then, but for most of Fashion-MNIST.
"""

import argparse
import itertools
import time

import torch
from torch import Tensor, nn
from wrong_labels_design import DATA, DEVELOPMENT, MODELS, RULES, SEEDS, Run, Split, plan, read, split, write
from wrong_labels_rules import Fixed, HeldOutTrim, Rule, WatchedTrim
from wrong_labels_tables import PAGE, tables

from ordered_sgd import ordered_mean
from ordered_sgd.lab.models import build, channels_last
from ordered_sgd.lab.report.marked import fill

BATCH, EPOCHS, FOLDS = 64, 30, 4
RATE = {"logistic": 0.05, "lenet": 0.01}  # divided by 10 after two thirds of the epochs
LOST = 0.05  # recall on the test samples below which a class counts as lost
SHORT = {"logistic": 10, "lenet": 20}  # epochs of the trainings whose predictions are held out


def new(run: Run, data: Split) -> tuple[nn.Module, torch.optim.SGD]:
    """The model and the optimizer of a run."""
    torch.manual_seed(run.seed)
    model = build(run.model, tuple(data.x.shape[1:]), data.classes)
    channels_last(model)
    return model, torch.optim.SGD(model.parameters(), RATE[run.model], momentum=0.9, weight_decay=1e-4)


def held_out(run: Run, data: Split) -> Tensor:
    """Probabilities (n, C) for every sample, from the one of four models, trained by plain SGD, that has not seen it.

    The rate falls to zero in a straight line. Of the second half of the epochs, the one with the least held-out loss is
    taken, on the labels as they are: later ones may have learned wrong labels by heart.
    """
    epochs, generator = SHORT[run.model], torch.Generator().manual_seed(run.seed + 1000)
    fold = torch.randperm(len(data.y), generator=generator) % FOLDS
    found = torch.zeros(epochs, len(data.y), data.classes)
    for out in range(FOLDS):
        model, optimizer = new(run, data)
        own, others = (fold == out).nonzero()[:, 0], (fold != out).nonzero()[:, 0]
        for epoch in range(epochs):
            optimizer.param_groups[0]["lr"] = RATE[run.model] * (1 - epoch / epochs)
            model.train()
            for index in others[torch.randperm(len(others), generator=generator)].split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(data.x[index]), data.y[index]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                found[epoch, own] = model(data.x[own]).softmax(1)
    late = found[epochs // 2 - 1 :]
    losses = [nn.functional.nll_loss(p.clamp(min=1e-9).log(), data.y).item() for p in late]
    return late[losses.index(min(losses))]


def rule_of(run: Run, data: Split) -> Rule:
    """The rule of a run, which may train models of its own first."""
    if run.fixed is not None:
        return Fixed(*run.fixed)
    return WatchedTrim() if run.arm == "watched" else HeldOutTrim(held_out(run, data), data.y)


def train(run: Run) -> dict[str, float]:
    """Test error in percent, trim of the last epoch, lost classes; for "held-out" the share found and the time."""
    data, begin = split(run), time.perf_counter()
    rule, ready = rule_of(run, data), time.perf_counter()
    model, optimizer = new(run, data)
    generator, trim = torch.Generator().manual_seed(run.seed), 0.0
    for epoch in range(EPOCHS):
        trim, q = rule.before(epoch)
        if epoch == EPOCHS * 2 // 3:
            optimizer.param_groups[0]["lr"] = RATE[run.model] / 10
        seen = torch.zeros(len(data.y), data.classes)
        for index in torch.randperm(len(data.y), generator=generator).split(BATCH):
            outputs, labels = model(data.x[index]), data.y[index]
            losses = nn.functional.cross_entropy(outputs, labels, reduction="none")
            optimizer.zero_grad()
            scores = rule.scores(losses.detach(), labels)
            ordered_mean(losses, min(q, 1 - trim), trim=trim, scores=scores).backward()
            optimizer.step()
            seen[index] = outputs.detach().softmax(1)
        rule.after(seen, data.y)
    took = time.perf_counter() - ready
    model.eval()
    with torch.no_grad():
        answers = torch.cat([model(x).argmax(1) for x in data.test_x.split(1000)])
    right = answers == data.test_y
    recalls = [float(right[data.test_y == label].float().mean()) for label in range(data.classes)]
    lost = sum(recall < LOST for recall in recalls)
    found = {"error": 100 * float((~right).float().mean()), "trim": trim, "lost": lost}
    if run.arm == "held-out" and rule.share is not None:
        found |= {"share": rule.share, "before": ready - begin, "seconds": took}
    return found


def main() -> None:
    """Run what is missing of the parts asked for, and write the tables between their marks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=DATA, action="append")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="fewer seeds, for a part that takes long")
    parser.add_argument("--development", action="store_true", help="the fixed arms on the development seeds")
    parser.add_argument("--page", action="store_true", help="only write the tables, from the record")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, seeds = read(), DEVELOPMENT if options.development else tuple(options.seeds)
    for model, data in [] if options.page else itertools.product(options.model or MODELS, options.data or DATA):
        for run in plan(data, model, seeds):
            if run not in found:
                found[run] = train(run)
                print(run, found[run], flush=True)
                if run.arm in RULES or model == "lenet":
                    write(found)
        write(found)
    PAGE.write_text(fill(PAGE.read_text(), "wrong-labels", tables(found)))
    print("\n\n".join(tables(found)))


if __name__ == "__main__":
    main()
