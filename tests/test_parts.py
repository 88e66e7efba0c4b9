"""The small parts of methods: a head, a queue, a slow copy."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing import assert_close

from deepclust.nets.parts import Queue, follow, mlp, slow_copy


def test_a_head_has_the_widths_asked_for():
    assert [tuple(p.shape) for p in mlp(6, 3).parameters()] == [(6, 6), (6,), (3, 6), (3,)]
    assert [tuple(p.shape) for p in mlp(6, 3, 4).parameters()] == [(4, 6), (4,), (3, 4), (3,)]


def test_the_queue_is_first_in_first_out_on_a_three_step_trace():
    queue = Queue(5, 1)
    queue.keys.copy_(torch.tensor([[-1.0], [-2.0], [-3.0], [-4.0], [-5.0]]))
    for keys, expected in [
        ([1.0, 2.0], [1, 2, -3, -4, -5]),
        ([3.0, 4.0], [1, 2, 3, 4, -5]),
        ([5.0, 6.0], [6, 2, 3, 4, 5]),
    ]:
        queue.push(torch.tensor(keys)[:, None])
        assert queue.keys[:, 0].tolist() == expected


def test_a_batch_longer_than_the_queue_leaves_its_last_keys():
    queue = Queue(3, 1)
    queue.push(torch.arange(4.0)[:, None])
    assert sorted(queue.keys[:, 0].tolist()) == [1, 2, 3]
    queue.push(torch.tensor([[9.0]]))
    assert sorted(queue.keys[:, 0].tolist()) == [2, 3, 9]


def test_a_queue_holds_only_what_was_pushed():
    queue = Queue(6, 4)
    assert len(queue.held()) == 0
    queue.push(torch.ones(4, 4))
    assert_close(queue.held(), torch.ones(4, 4))
    queue.push(2 * torch.ones(4, 4))
    assert len(queue.held()) == 6


def test_the_slow_copy_follows_exactly_on_a_three_step_trace():
    # From 0 with m = ¾ towards 4, 8, 0: 1, then ¾·1 + 2 = 2.75, then ¾·2.75 = 2.0625.
    fast = nn.Linear(1, 1, bias=False)
    fast.weight.data.zero_()
    slow = slow_copy(fast)
    for value, expected in [(4.0, 1.0), (8.0, 2.75), (0.0, 2.0625)]:
        fast.weight.data.fill_(value)
        follow(slow.parameters(), fast.parameters(), 0.75)
        assert slow.weight.item() == expected
    assert not slow.weight.requires_grad
