import importlib
import re
import sys

import pytest

from ordered_sgd.errors import MissingExtraError
from ordered_sgd.installed import how_to_install


@pytest.mark.parametrize(
    ("leaf", "module", "extra"),
    [
        ("lightning", "lightning", "lightning"),
        ("huggingface", "transformers", "huggingface"),
        ("huggingface", "accelerate", "huggingface"),
        ("skorch", "skorch", "skorch"),
        ("trl", "trl", "trl"),
    ],
)
def test_a_leaf_without_its_partner_is_one_clear_error(
    leaf: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"ordered_sgd.integrations.{leaf}"
    for partner in ("lightning", "transformers", "accelerate", "skorch", "trl"):  # none of them is loaded for this
        monkeypatch.setitem(sys.modules, partner, None if partner == module else sys)
    monkeypatch.delitem(sys.modules, name, raising=False)
    text = f"{name}: {module} must be installed; got no module {module!r}. {how_to_install(extra)}"
    with pytest.raises(MissingExtraError, match=f"^{re.escape(text)}$"):
        importlib.import_module(name)
