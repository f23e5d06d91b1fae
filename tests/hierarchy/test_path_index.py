from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import unhurried
from zarrfs.hierarchy.forgotten import Forgotten
from zarrfs.hierarchy.path_index import PathIndex
from zarrfs.keys import ROOT, NodePath

PATHS = st.lists(st.sampled_from("abc"), max_size=4).map(lambda parts: NodePath("/" + "/".join(parts)))


def lies_at_or_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


@unhurried
@given(st.lists(st.tuples(st.booleans(), PATHS)), PATHS)
def test_it_finds_what_is_at_and_below_a_path(steps: list[tuple[bool, NodePath]], top: NodePath) -> None:
    index, model = PathIndex(), set[NodePath]()
    for there, path in steps:
        (index.add if there else index.discard)(path)
        (model.add if there else model.discard)(path)
    found = list(index.at_and_below(top))
    assert set(found) == {path for path in model if lies_at_or_below(path, top)} and len(found) == len(set(found))
    assert len(index) == len(model)
    for path in list(model):
        index.discard(path)
    assert not index._below, "nothing is kept of what is not there"


def test_a_path_comes_after_what_it_lies_in_and_others_are_not_looked_at() -> None:
    index = PathIndex()
    for path in ("/a/b/c", "/a", "/a/b", *(f"/other/{number}" for number in range(1000))):
        index.add(NodePath(path))
    assert list(index.at_and_below(NodePath("/a"))) == ["/a", "/a/b", "/a/b/c"]
    looked_at: list[NodePath] = []

    class Counting(dict[NodePath, dict[NodePath, None]]):
        def get(self, path: NodePath, default: object = None) -> object:  # type: ignore[override]
            looked_at.append(path)
            return super().get(path, default)

    index._below = Counting(index._below)
    list(index.at_and_below(NodePath("/a")))
    assert looked_at == ["/a", "/a/b", "/a/b/c"]


@unhurried
@given(st.lists(st.tuples(st.booleans(), PATHS)))
def test_what_was_learnt_before_it_was_forgotten_does_not_count(steps: list[tuple[bool, NodePath]]) -> None:
    forgotten, learnt, counts = Forgotten(), dict[NodePath, int](), dict[NodePath, bool]()
    for forgets, path in steps:
        if forgets:
            forgotten.add(path)
            counts |= {each: False for each in counts if lies_at_or_below(each, path)}
        else:
            learnt[path], counts[path] = forgotten.now, True
    assert {path: forgotten.counts(path, learnt[path]) for path in learnt} == counts


def test_very_many_places_are_the_root() -> None:
    forgotten = Forgotten()
    before = forgotten.now
    for number in range(5000):
        forgotten.add(NodePath(f"/{number}"))
    assert len(forgotten._below) <= 1001
    assert not forgotten.counts(NodePath("/0"), before)
    assert not forgotten.counts(ROOT, before), "more than was said, never less"
    assert forgotten.counts(NodePath("/0"), forgotten.now)
