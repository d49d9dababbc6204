"""The queue in front of the engines."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from assay.live.admission import Queue


@dataclass(eq=False)
class Item:
    tenant: str
    key: float = 0.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=60), st.integers(1, 20))
def test_the_queue_is_bounded_and_nobody_vanishes(arrivals, limit):
    queue: Queue[Item] = Queue(limit)
    joined, away = [], []
    for tenant, key in arrivals:
        item = Item(tenant, key)
        joined.append(item)
        turned = queue.join(item, key)
        if turned is not None:
            away.append(turned)
        assert len(queue) <= limit
    served: list[Item] = []
    queue.serve(lambda item: served.append(item) is None)
    assert len(queue) == 0
    assert sorted(map(id, served + away)) == sorted(map(id, joined))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_smallest_keys_go_first_and_equal_ones_in_order_of_arrival(keys):
    queue: Queue[Item] = Queue(100)
    items = [Item("a", key) for key in keys]
    for item in items:
        queue.join(item, item.key)
    served: list[Item] = []
    queue.serve(lambda item: served.append(item) is None)
    assert served == sorted(items, key=lambda item: item.key)


@given(st.lists(st.integers(0, 3), max_size=60), st.data())
def test_those_who_left_are_not_served(keys, data):
    queue: Queue[Item] = Queue(100)
    items = [Item("a", key) for key in keys]
    for item in items:
        queue.join(item, item.key)
    gone = [item for item in items if data.draw(st.booleans())]
    for item in gone:
        assert queue.leave(item)
        assert not queue.leave(item)
    served: list[Item] = []
    queue.serve(lambda item: served.append(item) is None)
    assert set(map(id, served)) == set(map(id, items)) - set(map(id, gone))


def test_one_that_nobody_can_take_does_not_hold_up_those_in_other_lanes():
    queue: Queue[Item] = Queue(10)
    stuck, fine = Item("a"), Item("a")
    queue.join(stuck, 0.0, "full")
    queue.join(fine, 1.0, "free")
    served: list[Item] = []
    queue.serve(lambda item: item is fine and served.append(item) is None)
    assert served == [fine] and list(queue) == [stuck] and queue.waits("full") and not queue.waits("free")


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 5)), max_size=60),
    st.sets(st.sampled_from("xyz")),
    st.data(),
)
def test_lanes_with_room_are_served_in_one_order_and_the_others_wait(arrivals, room, data):
    queue: Queue[Item] = Queue(100)
    items = [(Item("a", key), lane) for lane, key in arrivals]
    for item, lane in items:
        queue.join(item, item.key, lane)
    gone = [item for item, _ in items if data.draw(st.booleans())]
    for item in gone:
        queue.leave(item)
    if data.draw(st.booleans()):  # somebody came or went: the lanes are found anew, and are the same
        lanes = {id(item): lane for item, lane in items}
        queue.sort(lambda item: lanes[id(item)])
    served: list[Item] = []
    queue.serve(lambda item: served.append(item) is None, lambda lane: lane in room)
    left = [(item, lane) for item, lane in items if item not in gone]
    assert served == sorted((item for item, lane in left if lane in room), key=lambda item: item.key)
    assert list(queue) == sorted((item for item, lane in left if lane not in room), key=lambda item: item.key)
    assert {lane for lane in "xyz" if queue.waits(lane)} == {lane for _, lane in left if lane not in room}


def test_a_full_queue_turns_away_the_last_of_the_tenant_with_the_most():
    queue: Queue[Item] = Queue(3)
    loud = [Item("loud") for _ in range(3)]
    for item in loud:
        assert queue.join(item, 0.0) is None
    assert queue.join(extra := Item("loud"), 0.0) is extra
    assert queue.join(Item("quiet"), 0.0) is loud[2]
    assert len(queue) == 3
