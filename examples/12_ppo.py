"""PPO's clipped objective with `selective_backward` alone: actions that are clipped need no backward pass.

The objective gives an action a gradient of zero once its probability has moved past the clip in the direction that its
advantage asks for. Nothing is ordered and no sample is chosen: `selective_backward` looks at the gradients that
arrive. The task is a bandit with one step per episode: the policy sees one of scikit-learn's handwritten digits, picks
a class, and gets a reward of 1 if it is right. A plain copy of the policy takes each step as well, to compare times
and gradients. Where few samples are clipped, little is saved, and an entropy bonus or a network shared with the value
function would give every sample a gradient.

Run: python examples/12_ppo.py [--rollouts 6] [--passes 10]
"""

import argparse
import copy
import time

import torch
from torch import Tensor, nn

from ordered_sgd import explain_backward, selective_backward
from ordered_sgd.lab import data

S, CLIP, RATE = 256, 0.2, 5e-4


def new_policy() -> nn.Module:
    """Scores (s, 10) of the classes of images (s, 1, 8, 8)."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(64, 64, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))


def objective(scores: Tensor, action: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    """The clipped objective, negated."""
    ratio = (scores.log_softmax(1).gather(1, action) - old).exp()
    return -torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()


def rollout(policy: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    """Actions, their log-probabilities and advantages, each (n, 1), and the mean reward."""
    with torch.no_grad():
        log_p = policy(x).log_softmax(1)
    action = torch.multinomial(log_p.exp(), 1)
    reward = (action == y[:, None]).float()
    std, mean = torch.std_mean(reward)
    return action, log_p.gather(1, action), (reward - mean) / (std + 1e-8), mean.item()


def update(policy: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, *targets: Tensor) -> float:
    """Take a step, as in any loop; returns the seconds of processor time that it took."""
    start = time.process_time()
    optimizer.zero_grad()
    objective(policy(x), *targets).backward()
    optimizer.step()
    return time.process_time() - start


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    """Of the gradients of two models, as a share of the largest gradient."""
    pairs = [(a.grad, b.grad) for a, b in zip(one.parameters(), other.parameters(), strict=True)]
    found = [(a, b) for a, b in pairs if a is not None and b is not None]
    return float(max((a - b).abs().max() for a, b in found) / max(a.abs().max() for a, _ in found))


def main() -> None:
    """Train, and print for each rollout how many samples had a gradient and what that saved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=6)
    parser.add_argument("--passes", type=int, default=10, help="over each rollout")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    part = data.load("digits", "train")
    x, y = torch.from_numpy(part.x).reshape(-1, 1, 8, 8) / 255, torch.from_numpy(part.y)

    policy = new_policy()
    plain = copy.deepcopy(policy)
    policy = selective_backward(policy)  # the one new line
    optimizers = [torch.optim.Adam(model.parameters(), lr=RATE) for model in (plain, policy)]
    report, difference, totals, compiling = explain_backward(policy), 0.0, [0.0, 0.0], 0.0
    for number in range(1, arguments.rollouts + 1):
        *targets, reward = rollout(policy, x, y)
        rows, samples, seconds = report.rows, report.samples, [0.0, 0.0]
        for _ in range(arguments.passes):
            for some in torch.randperm(len(x))[: len(x) // S * S].view(-1, S):
                batch = [value[some] for value in (x, *targets)]
                both = [update(model, how, *batch) for model, how in zip((plain, policy), optimizers, strict=True)]
                if compiling == 0.0:  # the first step, which says nothing about the others
                    compiling = both[1]
                    continue
                seconds = [sum(pair) for pair in zip(seconds, both, strict=True)]
                difference = max(difference, largest_difference(plain, policy))
                plain.load_state_dict(policy.state_dict())  # rounding would let the copies drift apart
        share = (report.rows - rows) / (report.samples - samples)
        saved = f"{100 * share:.0f} % of samples had a gradient, {seconds[0] / seconds[1]:.2f} times as fast"
        print(f"rollout {number}: reward {reward:.2f}, {saved}")
        totals = [sum(pair) for pair in zip(totals, seconds, strict=True)]
    print(f"all steps: {totals[0]:.1f} s plain, {totals[1]:.1f} s selective, and {compiling:.1f} s to compile")
    print(f"gradients differed by at most {difference:.0e} of the largest")


if __name__ == "__main__":
    main()
