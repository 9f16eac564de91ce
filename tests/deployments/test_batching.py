"""The scheduler of the timing model, step by step and under random loads."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from deployments.batching import Generated, Request, Scheduler, Step
from deployments.timing import TimingModel

# Times that are exact in binary: a step is 1 s, a prefill token 1/128 s, a decoding sequence 1/16 s.
TIMES: dict[str, Any] = {"prefill_tokens_per_s": 128, "step_s": 1, "sequence_s": 1 / 16}


def scheduler(**parameters: Any) -> Scheduler:
    sizes = {"kv_blocks": 100, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return Scheduler(TimingModel(**(TIMES | sizes | parameters)))


def request(name: str, prompt: int | list[int] = 4, max_tokens: int = 4, **more: Any) -> Request:
    """A prompt given by its length is like no other."""
    tokens = [hash((ord(name[0]), index)) for index in range(prompt)] if isinstance(prompt, int) else prompt
    return Request(name, tokens, max_tokens, **more)


def add(to: Scheduler, *requests: Request) -> None:
    for each in requests:
        to.add(each)


def steps(of: Scheduler, most: int = 10_000) -> Iterator[Step]:
    """Steps until nothing can go on."""
    while (step := of.step()).scheduled_tokens:
        yield step
        most -= 1
        assert most, "it never ends"


def ids(step: Step) -> list[str]:
    return [token.request_id for token in step.tokens]


def test_a_request_from_its_first_token_to_its_last() -> None:
    one = scheduler()
    one.add(request("a", prompt=6, max_tokens=3))
    assert (one.waiting, one.running) == (1, 0)
    first, *rest = steps(one)
    assert first == Step(1 + 6 / 128, 6, (Generated("a", 0, False),), admitted=("a",))
    assert rest == [
        Step(1 + 1 / 16, 1, (Generated("a", 1, False),)),
        Step(1 + 1 / 16, 1, (Generated("a", 2, True),)),
    ]
    assert (one.waiting, one.running, one.kv_usage) == (0, 0, 0)
    assert (one.prompt_tokens, one.generated_tokens) == (6, 3)


def test_one_token_comes_of_the_prefill_alone() -> None:
    one = scheduler()
    one.add(request("a", max_tokens=1))
    assert [step.tokens for step in steps(one)] == [(Generated("a", 0, True),)]


def test_without_work_a_step_is_nothing() -> None:
    assert scheduler().step() == Step()


@pytest.mark.parametrize("sequences", [1, 2, 5])
def test_a_step_s_time_grows_with_the_batch(sequences: int) -> None:
    one = scheduler()
    add(one, *(request(name) for name in "abcde"[:sequences]))
    prefill, decode, *_ = steps(one)
    assert prefill.duration_s == 1 + 4 * sequences / 128
    assert decode.duration_s == 1 + sequences / 16


def test_a_step_s_time_grows_with_what_is_in_the_cache() -> None:
    one = scheduler(cached_token_s=1 / 4)
    add(one, request("a", prompt=5, max_tokens=3), request("b", prompt=9, max_tokens=3))
    assert [step.duration_s for step in steps(one)] == [
        1 + 14 / 128,
        1 + 2 / 16 + (6 + 10) / 4,
        1 + 2 / 16 + (7 + 11) / 4,
    ]


def test_prefill_and_decode_share_a_step() -> None:
    one = scheduler()
    one.add(request("a"))
    one.step()
    one.add(request("b", prompt=16))
    step = one.step()
    assert step.duration_s == 1 + 1 / 16 + 16 / 128
    assert step.tokens == (Generated("a", 1, False), Generated("b", 0, False))


def test_a_long_prompt_is_cut_and_does_not_hold_up_what_decodes() -> None:
    one = scheduler(max_num_batched_tokens=8)
    one.add(request("a", prompt=4, max_tokens=10))
    one.step()
    one.add(request("b", prompt=16, max_tokens=1))
    seen = [one.step() for _ in range(3)]
    assert [step.scheduled_tokens for step in seen] == [8, 8, 3]
    assert [ids(step) for step in seen] == [["a"], ["a"], ["a", "b"]]
    assert [step.duration_s for step in seen] == [1 + 1 / 16 + count / 128 for count in (7, 7, 2)]


def test_first_come_first_served() -> None:
    one = scheduler(max_num_seqs=2)
    add(one, *(request(name, max_tokens=2) for name in "dacb"))
    assert [ids(step) for step in steps(one)] == [["d", "a"], ["d", "a"], ["c", "b"], ["c", "b"]]


def test_a_small_request_does_not_overtake_one_that_waits_for_blocks() -> None:
    one = scheduler(kv_blocks=4)
    add(one, request("a", prompt=12, max_tokens=2), request("b", prompt=8, max_tokens=1), request("c", max_tokens=1))
    assert [(step.admitted, one.waiting) for step in steps(one)] == [(("a",), 2), ((), 2), (("b", "c"), 0)]


def test_requests_hold_blocks_for_what_is_in_the_cache() -> None:
    one = scheduler(kv_blocks=8)
    one.add(request("a", prompt=7, max_tokens=4))
    usage = [one.kv_usage for _ in steps(one)]
    assert usage == [2 / 8, 2 / 8, 3 / 8, 0]  # 7, 8 and 9 tokens; the last step ends it


@pytest.mark.parametrize(("prompt", "max_tokens"), [(16, 1), (13, 4), (1, 16)])
def test_what_just_fits_runs(prompt: int, max_tokens: int) -> None:
    one = scheduler(kv_blocks=4)
    one.add(request("a", prompt, max_tokens))
    assert sum(len(step.tokens) for step in steps(one)) == max_tokens


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("b", 16, 2), "17 tokens never fit in a KV cache of 16"),
        (request("b", 0, 2), "a token in its prompt"),
        (request("b", 4, 0), "one to generate"),
        (request("a"), "id 'a' is there already"),
    ],
)
def test_what_can_never_run_is_refused(bad: Request, message: str) -> None:
    one = scheduler(kv_blocks=4)
    one.add(request("a"))
    with pytest.raises(ValueError, match=message):
        one.add(bad)
    assert one.waiting == 1
    one.step()
    with pytest.raises(ValueError, match="is there already"):
        one.add(request("a"))


def test_the_prefix_cache_saves_prefill() -> None:
    one = scheduler()
    system = list(range(100, 112))
    one.add(request("a", prompt=[*system, 1, 2], max_tokens=1))
    assert [step.scheduled_tokens for step in steps(one)] == [14]
    one.add(request("b", prompt=[*system, 3, 4, 5], max_tokens=1))
    (step,) = steps(one)
    assert (step.scheduled_tokens, step.duration_s) == (3, 1 + 3 / 128)
    assert (one.prompt_tokens, one.hit_tokens, one.hit_rate) == (29, 12, 12 / 29)


def test_a_prompt_is_hit_while_the_first_one_still_runs() -> None:
    one = scheduler(kv_blocks=5)
    prompt = list(range(12))
    one.add(request("a", prompt=prompt, max_tokens=4))
    one.step()
    one.add(request("b", prompt=prompt, max_tokens=1))
    assert one.step().scheduled_tokens == 1 + 4  # the last block is computed, so that there is a token to generate
    assert one.running == 1
    assert one.hit_tokens == 8


def test_a_known_answer_is_hit_by_the_next_turn() -> None:
    one = scheduler()
    prompt, answer = list(range(4)), [51, 52, 53, 54, 55]
    one.add(request("a", prompt=prompt, max_tokens=5, answer=answer))
    list(steps(one))
    one.add(request("b", prompt=[*prompt, *answer, 7], max_tokens=1))
    assert [step.scheduled_tokens for step in steps(one)] == [2]


def test_an_unknown_answer_is_not_hit() -> None:
    one = scheduler()
    one.add(request("a", prompt=[1, 2], max_tokens=9))
    list(steps(one))
    one.add(request("b", prompt=[1, 2], max_tokens=9))
    assert one.step().scheduled_tokens == 2
    assert one.hit_rate == 0


def test_what_nobody_uses_is_evicted() -> None:
    one = scheduler(kv_blocks=4)
    for name, scheduled in [("a", 12), ("b", 12), ("a", 8)]:  # of a's blocks, b left the first
        one.add(request(name, prompt=12, max_tokens=1))
        assert [step.scheduled_tokens for step in steps(one)] == [scheduled]
    one.add(request("a", prompt=12, max_tokens=1))
    assert [step.scheduled_tokens for step in steps(one)] == [4]


def test_out_of_blocks_the_youngest_waits_again_and_all_tokens_come_once() -> None:
    one = scheduler(kv_blocks=5)
    add(one, request("a", prompt=7, max_tokens=8), request("b", prompt=7, max_tokens=8))
    seen = list(steps(one))
    assert [step.preempted for step in seen if step.preempted] == [("b",)]
    assert [step.admitted for step in seen if step.admitted] == [("a", "b"), ("b",)]
    for name in "ab":
        assert [token.index for step in seen for token in step.tokens if token.request_id == name] == list(range(8))
    assert one.prompt_tokens == 14  # counted once
    assert one.kv_usage == 0


def test_the_preempted_comes_before_those_that_waited() -> None:
    one = scheduler(kv_blocks=5, max_num_seqs=2)
    add(one, *(request(name, prompt=7, max_tokens=8) for name in "abc"))
    last = [token.request_id for step in steps(one) for token in step.tokens if token.last]
    assert last == ["a", "b", "c"]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_cancelling_frees_at_once(after: int) -> None:
    one = scheduler(kv_blocks=4, max_num_seqs=1)
    add(one, request("a", prompt=8, max_tokens=8), request("b", prompt=13, max_tokens=1))
    for _ in range(after):
        one.step()
    one.cancel("a")
    assert (one.running, one.waiting, one.kv_usage) == (0, 1, 0)
    assert [ids(step) for step in steps(one)] == [["b"]]


def test_cancelling_what_is_not_there_is_no_error() -> None:
    one = scheduler()
    one.add(request("a", max_tokens=1))
    list(steps(one))
    one.cancel("a")
    one.cancel("never")
    assert one.step() == Step()


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_stalled_request_keeps_what_it_holds_until_it_is_cancelled(after: int) -> None:
    one = scheduler()
    one.add(request("a", prompt=5, max_tokens=9, stalls_after=after))
    assert sum(len(step.tokens) for step in steps(one)) == after
    assert one.running == 1
    assert one.kv_usage == 2 / 100
    one.add(request("b", max_tokens=2))
    assert [ids(step) for step in steps(one)] == [["b"], ["b"]]
    one.cancel("a")
    assert (one.running, one.kv_usage) == (0, 0)


def test_what_waits_behind_a_stalled_request_goes_on_when_it_is_cancelled() -> None:
    one = scheduler(kv_blocks=3)
    one.add(request("a", prompt=8, max_tokens=2, stalls_after=0))
    list(steps(one))
    one.add(request("b", prompt=8, max_tokens=1))
    assert one.step() == Step()
    one.cancel("a")
    assert [ids(step) for step in steps(one)] == [["b"]]


class Load:
    """Random requests that come and leave, and what must hold of every step."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.model = TimingModel(kv_blocks=24, block_size=4, max_num_seqs=5, max_num_batched_tokens=16, **TIMES)
        self.scheduler = Scheduler(self.model)
        self.live: dict[str, Request] = {}
        self.sent: dict[str, int] = {}
        self.finished = 0

    def arrive(self, name: str) -> None:
        prompt = [self.random.randrange(2) for _ in range(self.random.randrange(1, 40))]
        new = Request(name, prompt, self.random.randrange(1, 40))
        self.scheduler.add(new)
        self.live[name], self.sent[name] = new, 0

    def leave(self) -> None:
        name = self.random.choice(list(self.live))
        self.scheduler.cancel(name)
        del self.live[name]

    def step(self) -> bool:
        busy, step = bool(self.live), self.scheduler.step()
        assert bool(step.scheduled_tokens) == busy  # there is always somebody who can go on
        assert step.scheduled_tokens <= self.model.max_num_batched_tokens
        for token in step.tokens:
            assert token.index == self.sent[token.request_id]
            self.sent[token.request_id] += 1
            assert token.last == (self.sent[token.request_id] == self.live[token.request_id].max_tokens)
            if token.last:
                del self.live[token.request_id]
                self.finished += 1
        assert len(ids(step)) == len(set(ids(step)))
        assert self.scheduler.running <= self.model.max_num_seqs
        assert self.scheduler.running + self.scheduler.waiting == len(self.live)
        assert 0 <= self.scheduler.kv_usage <= 1
        return busy


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_lost_or_sent_twice_under_any_load(seed: int) -> None:
    load = Load(seed)
    left = 0
    for number in range(300):
        if load.random.random() < 0.4:
            load.arrive(f"{number}")
        if load.live and load.random.random() < 0.05:
            load.leave()
            left += 1
        load.step()
    while load.step():
        pass
    assert load.finished + left == len(load.sent)
    assert load.scheduler.generated_tokens == sum(load.sent.values())
    assert 0 < load.scheduler.hit_tokens < load.scheduler.prompt_tokens
    assert (load.scheduler.running, load.scheduler.waiting, load.scheduler.kv_usage) == (0, 0, 0)


def test_a_load_is_the_same_each_time() -> None:
    def durations() -> list[float]:
        load = Load(3)
        for number in range(30):
            load.arrive(f"{number}")
        return [step.duration_s for step in steps(load.scheduler)]

    assert durations() == durations()
