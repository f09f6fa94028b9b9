"""Names of keys: one slot per model, whatever the model is called."""

from __future__ import annotations

import pytest

from admission.keys import EPOCH, QueueKeys, is_permanent


@pytest.mark.parametrize("model", ["smollm2-135m-instruct", "org/model:v1", "{odd}", "}{", "größe"])
def test_all_keys_of_a_model_share_its_hash_tag(model: str) -> None:
    """A script may touch one slot of a cluster only; a brace in a name would break the tag."""
    keys = QueueKeys.of(model).in_order()
    tags = {key[key.index("{") + 1 : key.index("}")] for key in keys}
    assert len(tags) == 1
    assert len(set(keys)) == len(keys)


def test_different_models_have_different_keys() -> None:
    """Two models never share a queue, however alike their names look once escaped."""
    models = ("a", "A", "a b", "a%20b", "{a}", "%7Ba%7D")
    assert len({QueueKeys.of(model).waiting for model in models}) == len(models)


def test_only_the_epoch_is_permanent() -> None:
    """Everything else must end by itself when nobody is left."""
    assert is_permanent(EPOCH)
    assert not any(is_permanent(key) for key in QueueKeys.of("epoch").in_order())
