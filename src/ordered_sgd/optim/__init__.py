"""Line 6 of Algorithm 1 beyond torch.optim: proximal and mirror steps."""

from ordered_sgd.optim.mirror import MirrorDescent
from ordered_sgd.optim.proximal import ProximalSGD

__all__ = ["MirrorDescent", "ProximalSGD"]
