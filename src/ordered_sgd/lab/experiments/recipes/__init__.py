"""The paper's tables and figures as specs: what an exhibit is, and the protocols; `listing` has them all by name."""

from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, RateSearch, RecipeRow
from ordered_sgd.lab.experiments.recipes.protocols import AUTHORS_CODE, PAPER, PROTOCOLS, SWITCHES, Protocol, preset

__all__ = ["AUTHORS_CODE", "PAPER", "PROTOCOLS", "SWITCHES", "Exhibit", "Protocol", "RateSearch", "RecipeRow", "preset"]
