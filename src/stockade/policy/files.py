"""Policies as TOML text: the keys of the model, a `[limits]` table, and `profile` for the policy to start from."""

from __future__ import annotations

import tomllib

from stockade.errors import PolicyError
from stockade.policy.model import Policy
from stockade.policy.profiles import DEFAULT, profile


def load_policy(text: str, *, origin: str) -> Policy:
    """The policy that the text describes; `origin` (a file name) is named in every error.

    Raises: PolicyError, with the key.
    """
    try:
        keys = tomllib.loads(text)
    except RecursionError:
        raise PolicyError(f"{origin}: not a policy: nested too deeply", field="policy") from None
    except ValueError as error:  # TOMLDecodeError among them, and an integer of thousands of digits
        raise PolicyError(f"{origin}: not TOML: {_lowered(str(error))}", field="policy") from None
    base = keys.pop("profile", DEFAULT)
    try:
        return profile(base, **keys)
    except PolicyError as error:
        raise PolicyError(f"{origin}: {error.message}", field=error.field, hint=error.hint) from None


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
