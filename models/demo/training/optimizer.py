"""Muon for the matrices of the layers, AdamW for the head; embedding and norms are not trained."""

import torch


def _orthogonalize(g, steps=5):
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrix, in bf16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return (x.T if tall else x).float()


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                update = _orthogonalize(p.grad.lerp(buf, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def make(model, weight_decay):
    """The pair (Muon, AdamW) of what is trainable."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    muon = Muon([p for n, p in named if "_proj" in n], lr=0.02, weight_decay=weight_decay)
    adam = torch.optim.AdamW([p for n, p in named if "lm_head" in n], lr=1e-3, betas=(0.9, 0.95),
                             eps=1e-7, weight_decay=0.0)
    return muon, adam
