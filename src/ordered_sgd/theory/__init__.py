"""The theory of ordered SGD as functions: the weights gamma, the risk L_q, the bounds; NumPy and SciPy only."""

from ordered_sgd.theory.candidates import MemoryWeights, memory_weights
from ordered_sgd.theory.constants import (
    linear_lipschitz,
    loss_lipschitz,
    loss_range,
    regularizer_lipschitz,
    tanh_network_lipschitz,
    tanh_network_weak_convexity,
)
from ordered_sgd.theory.convergence import MoreauEnvelope, convergence_bound, draw_iterate, moreau_envelope
from ordered_sgd.theory.generalization import (
    Estimate,
    GeneralizationBound,
    bound_advantage,
    data_dependent_bound,
    generalization_bound,
    q_n_estimate,
    rademacher_linear,
    rademacher_linear_bound,
    union_delta,
)
from ordered_sgd.theory.risk import (
    average_spectrum,
    average_top_k_spectrum,
    cvar_spectrum,
    effective_sample_size,
    equivalent_cvar_level,
    maximal_spectrum,
    ordered_risk,
    ordered_spectrum,
    sample_weights,
    share_of_hardest,
    spectral_risk,
)
from ordered_sgd.theory.weights import gamma_limit, gamma_weights

__all__ = [
    "Estimate",
    "GeneralizationBound",
    "MemoryWeights",
    "MoreauEnvelope",
    "average_spectrum",
    "average_top_k_spectrum",
    "bound_advantage",
    "convergence_bound",
    "cvar_spectrum",
    "data_dependent_bound",
    "draw_iterate",
    "effective_sample_size",
    "equivalent_cvar_level",
    "gamma_limit",
    "gamma_weights",
    "generalization_bound",
    "linear_lipschitz",
    "loss_lipschitz",
    "loss_range",
    "maximal_spectrum",
    "memory_weights",
    "moreau_envelope",
    "ordered_risk",
    "ordered_spectrum",
    "q_n_estimate",
    "rademacher_linear",
    "rademacher_linear_bound",
    "regularizer_lipschitz",
    "sample_weights",
    "share_of_hardest",
    "spectral_risk",
    "tanh_network_lipschitz",
    "tanh_network_weak_convexity",
    "union_delta",
]
