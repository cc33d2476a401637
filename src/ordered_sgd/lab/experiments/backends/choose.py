"""The backend of a name."""

from typing import Any

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.experiments.backends.backend import Backend
from ordered_sgd.lab.experiments.backends.processes import Processes
from ordered_sgd.lab.experiments.store import Records

BACKENDS = ("processes", "ray")


def backend(name: str, records: Records, *, address: str | None = None, **options: Any) -> Backend:
    """Processes of this machine, or Ray here or at an address; the options are those of `Backend`."""
    check_choice("backend", "--backend", name, BACKENDS)
    if name == "ray":
        from ordered_sgd.lab.experiments.backends.ray import RayTasks  # nothing else needs Ray

        return RayTasks(records, address=address, **options)
    if address is not None:
        remedy = "Processes run on this machine alone."
        raise ArgumentError(message("backend", "--address", "be used with --backend ray", repr(address), remedy))
    return Processes(records, **options)
