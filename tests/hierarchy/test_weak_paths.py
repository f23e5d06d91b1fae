"""Objects by path, whose last reference may be dropped at any time and in any thread."""

from __future__ import annotations

import threading

from zarrfs.hierarchy.weak_paths import WeakPaths
from zarrfs.keys import ROOT, NodePath


class Thing:
    pass


def test_it_is_there_as_long_as_something_else_holds_it() -> None:
    paths = WeakPaths[Thing]()
    one, other = Thing(), Thing()
    paths.put(NodePath("/g/a"), one)
    paths.put(NodePath("/ga"), other)
    assert paths.get(NodePath("/g/a")) is one and list(paths.at_and_below(NodePath("/g"))) == [one]
    del one
    assert paths.get(NodePath("/g/a")) is None and list(paths.at_and_below(ROOT)) == [other]
    assert len(paths) == 1 and len(paths._paths) == 1
    assert paths.remove_below(ROOT) == [other] and not len(paths) and paths.remove(NodePath("/ga")) is None


def test_another_object_at_the_path_of_one_that_ended_stays() -> None:
    paths = WeakPaths[Thing]()
    one = Thing()
    paths.put(NodePath("/a"), one)
    other, one = Thing(), None  # type: ignore[assignment]
    paths.put(NodePath("/a"), other)
    another = Thing()
    paths.put(NodePath("/a"), another)
    del other
    assert len(paths) == 1 and paths.get(NodePath("/a")) is another


def test_the_index_is_not_changed_by_the_thread_that_drops_the_last_reference() -> None:
    paths = WeakPaths[Thing]()
    held = [Thing()]
    paths.put(NodePath("/g/a"), held[0])
    changed: list[threading.Thread] = []
    discard = paths._paths.discard

    def noted(path: NodePath) -> None:
        changed.append(threading.current_thread())
        discard(path)

    paths._paths.discard = noted  # type: ignore[method-assign]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert paths.get(NodePath("/g/a")) is None and not changed
    paths.put(NodePath("/g/b"), Thing())
    assert not len(paths) and set(changed) == {threading.current_thread()}


def test_what_ends_while_it_is_removed_is_left_out() -> None:
    paths = WeakPaths[Thing]()
    paths.put(NodePath("/g/a"), Thing())
    kept = Thing()
    paths.put(NodePath("/g/b"), kept)
    assert paths.remove_below(NodePath("/g")) == [kept]
