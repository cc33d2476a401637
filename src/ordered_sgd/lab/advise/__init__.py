"""What would it save on my model? `advise` measures a model of yours for some minutes and gives one verdict."""

from ordered_sgd.lab.advise.advice import Advice, advise

__all__ = ["Advice", "advise"]
