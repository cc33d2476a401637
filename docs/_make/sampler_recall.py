"""Whether the recall that a batch sampler reports is right: measured beside full scoring, and written into the page.

``python docs/_make/sampler_recall.py`` takes half an hour and needs Fashion-MNIST (`osgd data fetch fashion-mnist`);
with ``--checkpoint FILE`` it can be stopped and goes on with the next epoch.
LeNet is trained for 40 epochs on augmented images that two workers load. Beside every step all samples that were drawn
are scored, in the views that the workers would have made: the true recall of an epoch is the share of the q largest
losses of its batches that were among those to be loaded, over all batches. What the sampler reports at the end of the
epoch rests on its audits alone.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ordered_sgd import OrderedBatchSampler, ordered_mean, select_top_q
from ordered_sgd.lab.data import load
from ordered_sgd.lab.models import build, channels_last
from ordered_sgd.lab.report.marked import fill, markdown_table
from ordered_sgd.shuffled import hashed

PAGE = Path(__file__).parents[1] / "samplers.md"
RECORD = Path(__file__).parents[1] / "records" / "sampler-recall.json"
S, Q, PADDING, SHOWN = 64, 0.25, 2, (1, 2, 3, 5, 10, 20, 30, 40)


class Views(Dataset[tuple[Tensor, Tensor, int]]):
    """Images shifted and mirrored at random: the view of an image in an epoch is always the same one."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = nn.functional.pad(images, (PADDING,) * 4)
        self.labels = labels
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers live as long as the training

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        rng = np.random.default_rng(hashed(int(self.epoch), index))
        top, left, mirrored = rng.integers(2 * PADDING + 1), rng.integers(2 * PADDING + 1), rng.integers(2)
        view = self.images[index, :, top : top + 28, left : left + 28].float().div(255)
        return view.flip(2) if mirrored else view, self.labels[index], index


def measure(epochs: int, samples: int | None, checkpoint: Path | None) -> list[dict[str, float]]:
    """The true recall of each epoch, and what the sampler reported."""
    torch.manual_seed(0)
    data = load("fashion-mnist")
    views = Views(torch.from_numpy(data.x[:samples]), torch.from_numpy(data.y[:samples]))
    model = channels_last(build("lenet", data.x.shape[1:], len(data.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss(reduction="none")
    sampler = OrderedBatchSampler(views, S, q=Q)
    loader = DataLoader(views, batch_sampler=sampler, num_workers=2, persistent_workers=True)
    lines: list[dict[str, float]] = []
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "sampler": sampler}
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        lines = saved.pop("lines")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
    for epoch in range(len(lines), epochs):
        views.epoch.fill_(epoch)
        found, kept, total = 0, 0, 0.0
        for x, y, index in loader:
            drawn = sampler.drawn(index)
            whole = [views[number] for number in drawn.index.tolist()]
            with torch.no_grad():
                truth = criterion(model(torch.stack([view for view, _, _ in whole])), views.labels[drawn.index])
            rows = select_top_q(truth, drawn.kept.q)
            assert drawn.part is not None
            found, kept = found + int(torch.isin(rows, drawn.part.scored).sum()), kept + len(rows)
            losses = criterion(model(x), y)
            optimizer.zero_grad()
            ordered_mean(losses, sampler.q).backward()
            optimizer.step()
            sampler.update(index, losses)
            total += float(truth.mean())
        recall, true = sampler.recall, found / kept
        assert recall is not None
        line = {"epoch": epoch + 1, "true": true, "mean": recall.mean, "low": recall.low, "high": recall.high}
        lines.append({**line, "audits": recall.audits, "loaded": sampler.loaded, "loss": total / len(sampler)})
        print(json.dumps({name: round(value, 4) for name, value in lines[-1].items()}), flush=True)
        if checkpoint is not None:
            torch.save({**{name: part.state_dict() for name, part in parts.items()}, "lines": lines}, checkpoint)
    return lines


def table(lines: list[dict[str, float]]) -> str:
    """Some of the epochs, and how many of all lie inside their interval."""
    inside = sum(line["low"] <= line["true"] <= line["high"] for line in lines)
    cells = [
        {
            "epoch": str(int(line["epoch"])),
            "true recall": f"{line['true']:.3f}",
            "reported": f"{line['mean']:.3f}",
            "95 % interval": f"{line['low']:.3f} to {line['high']:.3f}",
            "loaded": f"{line['loaded']:.1%}",
        }
        for line in lines
        if line["epoch"] in SHOWN
    ]
    summary = f"The true recall lies inside the reported interval in **{inside} of {len(lines)}** epochs."
    return f"{summary}\n\n{markdown_table(cells)}"


def main() -> None:
    """Measure, or read the record, and write the table between its marks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--samples", type=int, default=None, help="only this many, for a try; nothing is written")
    parser.add_argument("--checkpoint", type=Path, default=None, help="saved after each epoch, and read at the start")
    parser.add_argument("--page", action="store_true", help="only write the page, from the record")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = (
        json.loads(RECORD.read_text()) if options.page else measure(options.epochs, options.samples, options.checkpoint)
    )
    if options.samples is None and not options.page:
        RECORD.write_text(json.dumps(lines, indent=1) + "\n")
    if options.samples is None:
        PAGE.write_text(fill(PAGE.read_text(), "sampler-recall", [table(lines)]))
    print(table(lines))


if __name__ == "__main__":
    main()
