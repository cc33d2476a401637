"""Line 6 of Algorithm 1 beyond torch.optim: proximal and mirror steps."""
