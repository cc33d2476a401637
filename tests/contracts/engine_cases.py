"""The matrix of models that every engine is held to."""

from tests.contracts.engine_cases_common import Case
from tests.contracts.engine_cases_coupled import COUPLED, LOOKS_COUPLED
from tests.contracts.engine_cases_huggingface import HUGGING_FACE
from tests.contracts.engine_cases_layers import LAYERS
from tests.contracts.engine_cases_losses import LOSSES, SURROUNDINGS
from tests.contracts.engine_cases_shapes import SHAPES

CASES: list[Case] = [*LAYERS, *SHAPES, *LOSSES, *SURROUNDINGS, *COUPLED, *LOOKS_COUPLED, *HUGGING_FACE]
SHORT: list[Case] = [case for case in CASES if not case.slow]
