"""A backend without a model: a virtual clock, a cost model, and KV contents kept as hashes."""

from .backend import SimBackend, SimOptions
from .clock import VirtualClock
from .contents import generate_alone
from .contract import ContractError

__all__ = ["ContractError", "SimBackend", "SimOptions", "VirtualClock", "generate_alone"]
