"""An engine as its user configures it: a scheduler, its options by their real names, and the size of its cache."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..base.catalog import validate
from ..base.errors import InputError, UnknownNameError, describe
from .blocks import States
from .policies import POLICIES, Policy
from .settings import Settings
from .speculation import AcceptanceModel

if TYPE_CHECKING:
    from ..parallel.serving_engine import ServingEngine


@dataclass(frozen=True, init=False)
class Engine(Settings):
    """A serving engine.

    Parameters
    ----------
    scheduler
        Name of a registered scheduler: ``vllm``, ``sglang``, ...
    kv_tokens
        Tokens in the cache of one attention replica; None: unlimited.
    block_tokens
        Tokens of a block; None: by the scheduler's own option.
    speculation
        Drafts and their acceptance; None: one token per step.
    states
        Where states of linear attention are stored; None: there are none.
    counts_on_host, reads_only
        Whether the host reads in every layer how many rows each expert gets; whether it only reads prompts.
    options
        Options of the scheduler by their real names.

    Raises
    ------
    InputError
        An option is unknown (with the nearest name) or out of range.

    Examples
    --------
    >>> engine = Engine("vllm", max_num_seqs=8, kv_tokens=4096)
    >>> engine.options.max_num_seqs, engine.block_tokens
    (8, 16)
    """

    scheduler: str = ""

    def __init__(
        self,
        scheduler: str = "vllm",
        *,
        kv_tokens: int | None = None,
        block_tokens: int | None = None,
        speculation: AcceptanceModel | None = None,
        states: States | None = None,
        counts_on_host: bool = False,
        reads_only: bool = False,
        **options: Any,
    ) -> None:
        policy = POLICIES.get(scheduler)
        unknown = next((name for name in options if name not in policy.options.model_fields), None)
        if unknown is not None:
            raise UnknownNameError(f"option of {scheduler}", unknown, policy.options.model_fields)
        for name, value in options.items():
            _check_number(name, value, policy.options.model_fields[name].annotation)
        block_tokens = policy.block_of(options) or block_tokens
        if block_tokens is not None:
            options.setdefault(policy.block_option, block_tokens)
        object.__setattr__(self, "scheduler", scheduler)
        object.__setattr__(self, "options", validate(options, policy.options))
        object.__setattr__(self, "kv_tokens", _tokens(kv_tokens))
        object.__setattr__(self, "speculation", speculation)
        object.__setattr__(self, "block_tokens", getattr(self.options, policy.block_option))
        object.__setattr__(self, "states", states)
        object.__setattr__(self, "counts_on_host", counts_on_host)
        object.__setattr__(self, "reads_only", reads_only)

    @classmethod
    def of_stack(
        cls,
        stack: ServingEngine,
        memory_bytes: float,
        *,
        kv_tokens: int | None = None,
        block_tokens: int | None = None,
        scheduler: str | None = None,
        speculation: AcceptanceModel | None = None,
        states: States | None = None,
        counts_on_host: bool = False,
        reads_only: bool = False,
        **options: Any,
    ) -> Engine:
        """The engine of a software stack, with its defaults on a GPU; with another scheduler, that one's defaults.

        Parameters
        ----------
        stack
            States the scheduler, its options, limits by memory, and the tokens of a block.
        memory_bytes
            Visible memory of a GPU.
        kv_tokens, speculation, states, counts_on_host, reads_only
            As of :class:`Engine`.
        block_tokens
            Tokens of a block of the cache over all ranks that share it; None: the stack's.
        scheduler
            A name; None: the stack's.
        options
            Stated options override the stack's.
        """
        name = stack.scheduler.name if scheduler is None else scheduler
        values = POLICIES.get(name).usual_options(stack, memory_bytes)
        block = stack.block_tokens if block_tokens is None else block_tokens
        return cls(
            name,
            kv_tokens=kv_tokens,
            block_tokens=block if block > 1 else None,
            speculation=speculation,
            states=states,
            counts_on_host=counts_on_host,
            reads_only=reads_only,
            **{**values, **options},
        )

    @property
    def policy(self) -> Policy:
        """The scheduler."""
        return POLICIES.get(self.scheduler)


def _check_number(name: str, value: object, kind: object) -> None:
    """Refuses values that a scenario's sections would accept as numbers, but are none."""
    if kind not in (int, float):
        return
    if isinstance(value, bool) or (isinstance(value, float) and not isfinite(value)):
        raise InputError(f"{describe(value)} is not a number", key=name)


def _tokens(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value < 1:
        problem = f"{describe(value)} is not a number of tokens; it must be at least 1, or None"
        raise InputError(problem, key="kv_tokens")
    return None if value == float("inf") else int(value)
