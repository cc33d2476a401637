"""The theory of ordered SGD as functions: the weights gamma, the risk L_q and its neighbours; NumPy and SciPy only."""

from .risk import (
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
from .weights import gamma_limit, gamma_weights

__all__ = [
    "average_spectrum",
    "average_top_k_spectrum",
    "cvar_spectrum",
    "effective_sample_size",
    "equivalent_cvar_level",
    "gamma_limit",
    "gamma_weights",
    "maximal_spectrum",
    "ordered_risk",
    "ordered_spectrum",
    "sample_weights",
    "share_of_hardest",
    "spectral_risk",
]
