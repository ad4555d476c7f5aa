"""A plan's balance of experts: the name of a registered policy, or its name and the options that it brings."""

from __future__ import annotations

from typing import Any

from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import core_schema

from ..base.errors import did_you_mean, shorten
from ..base.strict import refuse
from .balance import BALANCES, Balance, ExpertBalance

#: The key that names the policy.
POLICY = "policy"


class BalanceType:
    """Annotates a :class:`~tspsim.parallel.balance.Balance`: text or a mapping in a file, and the same in JSON."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(written)
        )

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: Any) -> dict[str, Any]:
        names = list(BALANCES.names())
        return {"anyOf": [{"enum": names, "type": "string"}, *(of_policy(policy) for policy in BALANCES.values())]}


def of_policy(policy: ExpertBalance) -> dict[str, Any]:
    """The JSON Schema of a policy with its options."""
    keys: dict[str, Any] = {POLICY: {"const": policy.name, "description": "which policy"}}
    for option in policy.options:
        keys[option.name] = TypeAdapter(option.type).json_schema() | {
            "description": option.summary,
            "default": option.default,
        }
    return {"type": "object", "properties": keys, "required": [POLICY], "additionalProperties": False}


def read(value: object) -> Balance:
    """What a file states."""
    if isinstance(value, Balance):
        return value
    stated = dict(value) if isinstance(value, dict) else {POLICY: value}
    name = stated.pop(POLICY, None)
    if not isinstance(name, str) or name not in BALANCES:
        said = f"'{shorten(str(name))}' is not allowed; use" if name is not None else f"needs {POLICY}:"
        raise refuse(f"{said} {' or '.join(BALANCES.names())}{did_you_mean(str(name), BALANCES.names())}")
    policy = BALANCES.get(name)
    options = {option.name: option for option in policy.options}
    strange = next((key for key in stated if key not in options), None)
    if strange is not None:
        allowed = f"; {name} has {', '.join(options)}" if options else f"; {name} has none"
        raise refuse(f"unknown option '{shorten(str(strange))}'{did_you_mean(str(strange), options) or allowed}")
    values = []
    for key, setting in stated.items():
        try:
            values.append((key, TypeAdapter(options[key].type).validate_python(setting)))
        except ValidationError as error:
            raise refuse(f"{key}: {shorten(str(setting))} is not allowed: {error.errors()[0]['msg']}") from None
    return Balance(name, tuple(sorted(values)))


def written(balance: Balance) -> str | dict[str, Any]:
    """The same as plain data."""
    return {POLICY: balance.policy, **dict(balance.stated)} if balance.stated else balance.policy
