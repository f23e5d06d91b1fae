"""`PathDict` against a dict that is searched by prefix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import unhurried
from zarrfs.keys.path_set import PathDict, folder_of_ident

# Names that begin with another one, and none at all.
IDENTS = st.tuples(st.lists(st.sampled_from(["a", "ab", "a.npy", "a~1", ""]), min_size=1, max_size=4), st.booleans()).map(
    lambda parts: "view/" + "/".join(parts[0]) + "/" * parts[1]
)
STEPS = st.lists(st.tuples(st.sampled_from(["set", "del", "take", "take_below", "look"]), IDENTS, IDENTS))


@unhurried
@given(STEPS)
def test_it_is_a_dict_of_which_a_part_can_be_found(steps: list[tuple[str, str, str]]) -> None:
    found, model = PathDict[str, int](folder_of_ident), dict[str, int]()
    for number, (step, ident, other) in enumerate(steps):
        folder = ident.rstrip("/") + "/"
        below = {each: value for each, value in model.items() if each.startswith(folder)}
        if step == "set":
            found[ident] = model[ident] = number
        elif step == "del" and ident in model:
            del found[ident], model[ident]
        elif step == "take":
            assert found.take(ident) == model.pop(ident, None)
        elif step == "take_below":
            assert found.take_below(folder) == below
            model = {each: value for each, value in model.items() if each not in below}
        else:
            assert sorted(found.at_and_below(folder)) == sorted(below)
            assert set(found.directly_below(folder)) == {each for each in below if folder_of_ident(each) == folder}
        assert found == model and len(found) == len(model) and [*found] == [*model] and bool(found) == bool(model)
        assert found.get(ident) == model.get(ident) and (other in found) == (other in model)
    assert found.take_below("") == model
    assert not found and not found._below, "nothing is kept of what is not there"


def test_what_would_change_it_without_its_index_is_refused() -> None:
    found = PathDict[str, int](folder_of_ident)
    found["view/a"] = 1
    for change in (
        lambda: found.pop("view/a"),
        lambda: found.update({"view/b": 2}),
        lambda: found.setdefault("view/b", 2),
        found.clear,
    ):
        with pytest.raises(TypeError):
            change()
    assert found == {"view/a": 1}
